#include "machine/virtual_gpu/nccl/reduce.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

namespace machine::virtual_gpu::nccl {
namespace {

// The type of arithmetic and sums.
template <class T>
using Accumulator = std::conditional_t<std::is_arithmetic_v<T>, T, float>;

// In the order of ncclDataType_t.
using Types =
    std::tuple<std::int8_t, std::uint8_t, std::int32_t, std::uint32_t, std::int64_t, std::uint64_t,
               __half, float, double, __nv_bfloat16, __nv_fp8_e4m3, __nv_fp8_e5m2>;

// Calls visitor.operator()<T>() with the type of the elements.
template <class Visitor>
void visit(ncclDataType_t type, Visitor visitor) {
  const auto call = [&]<std::size_t i>() {
    if (i == type) visitor.template operator()<std::tuple_element_t<i, Types>>();
  };
  [&]<std::size_t... i>(std::index_sequence<i...>) { (call.template operator()<i>(), ...); }
  (std::make_index_sequence<std::tuple_size_v<Types>>());
}

template <class T>
T get(const std::byte* values, std::size_t i) {
  T value;
  std::memcpy(&value, values + i * sizeof(T), sizeof(T));
  return value;
}
template <class T>
void put(std::byte* values, std::size_t i, T value) {
  std::memcpy(values + i * sizeof(T), &value, sizeof(T));
}

template <class Number>
Number joined(ncclRedOp_t op, Number a, Number b) {
  // Unsigned, because integers wrap around.
  if constexpr (std::is_integral_v<Number>) {
    using Wraps = std::make_unsigned_t<Number>;
    const auto x = static_cast<Wraps>(a), y = static_cast<Wraps>(b);
    if (op == ncclProd) return static_cast<Number>(static_cast<Wraps>(x * std::uint64_t{y}));
    if (op == ncclSum || op == ncclAvg) return static_cast<Number>(static_cast<Wraps>(x + y));
  }
  if (op == ncclProd) return a * b;
  if (op == ncclMax) return std::max(a, b);
  if (op == ncclMin) return std::min(a, b);
  return a + b;
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
  std::size_t size = 0;
  visit(type, [&]<class T>() { size = sizeof(T); });
  return size;
}

const char* name(ncclDataType_t type) {
  constexpr const char* names[] = {"int8",    "uint8",    "int32",      "uint32",
                                   "int64",   "uint64",   "float16",    "float32",
                                   "float64", "bfloat16", "float8e4m3", "float8e5m2"};
  return names[type];
}

const char* name(ncclRedOp_t op) {
  constexpr const char* names[] = {"sum", "prod", "max", "min", "avg"};
  return names[op];
}

Sum::Sum(ncclDataType_t type, ncclRedOp_t op, std::size_t count, int ranks)
    : type_(type), op_(op), count_(count), ranks_(ranks) {
  visit(type_, [&]<class T>() { sums_.resize(count * sizeof(Accumulator<T>)); });
}

void Sum::add(const std::byte* input) {
  visit(type_, [&]<class T>() {
    using Number = Accumulator<T>;
    for (std::size_t i = 0; i < count_; ++i) {
      auto value = static_cast<Number>(get<T>(input, i));
      if (op_ == ncclAvg && std::is_floating_point_v<Number>)
        value *= Number(1) / static_cast<Number>(ranks_);
      if (!empty_) value = joined(op_, get<Number>(sums_.data(), i), value);
      put(sums_.data(), i, value);
    }
  });
  empty_ = false;
}

std::vector<std::byte> Sum::result() const {
  std::vector<std::byte> result(count_ * size_of(type_));
  visit(type_, [&]<class T>() {
    using Number = Accumulator<T>;
    for (std::size_t i = 0; i < count_; ++i) {
      auto value = get<Number>(sums_.data(), i);
      if (op_ == ncclAvg && std::is_integral_v<Number>) value /= static_cast<Number>(ranks_);
      put(result.data(), i, static_cast<T>(value));
    }
  });
  return result;
}

}  // namespace machine::virtual_gpu::nccl
