#include "collectives/compression/one_bit.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace collectives {

namespace {

constexpr std::int64_t block = 1024;  // of decode_sum: stays in the first-level cache

}  // namespace

void OneBit::encode(float* values, std::int64_t count, std::byte* code) const {
  if (count == 0) return;
  double squares = 0;
  for (std::int64_t i = 0; i < count; ++i)
    squares += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  const auto scale = static_cast<float>(std::sqrt(squares / static_cast<double>(count)));
  const bool finite = std::isfinite(scale);
  const float sent = finite ? scale : std::numeric_limits<float>::quiet_NaN();
  std::memcpy(code, &sent, sizeof(float));
  std::byte* bits = code + sizeof(float);
  for (std::int64_t begin = 0; begin < count; begin += 8) {
    unsigned byte = 0;
    const std::int64_t end = std::min(count, begin + 8);
    for (std::int64_t i = begin; i < end; ++i) {
      const bool negative = values[i] < 0;
      byte |= static_cast<unsigned>(negative) << (i - begin);
      values[i] = finite ? values[i] - (negative ? -scale : scale) : 0.0f;
    }
    *bits++ = static_cast<std::byte>(byte);
  }
}

void OneBit::decode_sum(std::span<const std::byte* const> codes, std::int64_t count,
                        float* out) const {
  sum_blocks(codes, count, block, out,
             [](const std::byte* code, std::int64_t begin, std::int64_t /*size*/) {
               float scale = 0;
               std::memcpy(&scale, code, sizeof(float));
               const std::byte* bits = code + sizeof(float) + begin / 8;
               return [bits, scale](std::int64_t i) {
                 const unsigned byte = std::to_integer<unsigned>(bits[i / 8]);
                 return (byte >> (i % 8) & 1) != 0 ? -scale : scale;
               };
             });
}

}  // namespace collectives
