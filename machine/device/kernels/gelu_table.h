#pragma once
// GELU and its slope for every number of a 16-bit type, indexed by its bits, before rounding to
// that type. The values have the same bits as computed ones. 256 KiB each, built on first use.

#include <cstdint>
#include <vector>

#include "machine/device/kernels/fields.h"
#include "machine/device/kernels/functions.h"

namespace machine::kernel {

template <class T, class Function>
std::vector<float> table_of(const Function& function) {
  static_assert(sizeof(T) == sizeof(std::uint16_t));
  std::vector<float> table;
  table.reserve(1 << 16);
  for (std::uint32_t bits = 0; bits < 1 << 16; ++bits) {
    T number;
    number.bits = static_cast<std::uint16_t>(bits);
    table.push_back(function(widen(number)));
  }
  return table;
}

template <class T>
const float* gelu_table() {
  static const std::vector<float> table =
      table_of<T>([](float x) { return Gelu<float>::value(x); });
  return table.data();
}

template <class T>
const float* gelu_slope_table() {
  static const std::vector<float> table =
      table_of<T>([](float x) { return Gelu<float>::derivative(x); });
  return table.data();
}

struct LookUp {
  const float* table;
  SHARDMARK_BOTH void operator()(std::uint16_t bits, float& out) const { out = table[bits]; }
};

struct LookUpAndMultiply {
  const float* table;
  SHARDMARK_BOTH void operator()(std::uint16_t bits, float factor, float& out) const {
    out = factor * table[bits];
  }
};

}  // namespace machine::kernel
