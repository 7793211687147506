#include "collectives/compression/int8_block.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "collectives/compression/magnitude.h"

namespace collectives {
namespace {

constexpr std::int64_t stride = Int8Block::block + static_cast<std::int64_t>(sizeof(float));

// What of a block of `count` values the code carries is taken from them.
void encode_block(float* values, std::int64_t count, std::byte* code) {
  const std::uint32_t largest = largest_magnitude(values, count);
  auto* quantized = reinterpret_cast<std::int8_t*>(code + sizeof(float));
  float scale = 0;
  if (largest >= magnitude(Int8Block::beyond)) {
    scale = std::numeric_limits<float>::quiet_NaN();
    std::fill_n(values, count, 0.0f);
  } else if (std::bit_cast<float>(largest) >= Int8Block::least) {
    scale = std::bit_cast<float>(largest) / 127;
  }
  std::memcpy(code, &scale, sizeof(float));
  if (!(scale > 0)) {
    std::memset(quantized, 0, static_cast<std::size_t>(count));
    return;
  }
  const float reciprocal = 1 / scale;
  for (std::int64_t i = 0; i < count; ++i) {
    const float q = std::rint(values[i] * reciprocal);
    quantized[i] = static_cast<std::int8_t>(static_cast<std::int32_t>(q));
    values[i] -= q * scale;
  }
}

}  // namespace

void Int8Block::encode(float* values, std::int64_t count, std::byte* code) const {
  for (std::int64_t begin = 0; begin < count; begin += block, code += stride)
    encode_block(values + begin, std::min(block, count - begin), code);
}

void Int8Block::decode_sum(std::span<const std::byte* const> codes, std::int64_t count,
                           float* out) const {
  for (std::int64_t begin = 0; begin < count; begin += block) {
    const std::int64_t size = std::min(block, count - begin);
    float* sums = out + begin;
    bool first = true;
    for (const std::byte* code : codes) {
      const std::byte* here = code + begin / block * stride;
      float scale = 0;
      std::memcpy(&scale, here, sizeof(float));
      const auto* quantized = reinterpret_cast<const std::int8_t*>(here + sizeof(float));
      if (first) {
#pragma GCC ivdep
        for (std::int64_t i = 0; i < size; ++i) sums[i] = static_cast<float>(quantized[i]) * scale;
      } else {
#pragma GCC ivdep
        for (std::int64_t i = 0; i < size; ++i) sums[i] += static_cast<float>(quantized[i]) * scale;
      }
      first = false;
    }
  }
}

}  // namespace collectives
