#include "collectives/compression/int_block.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "collectives/compression/magnitude.h"

namespace collectives {
namespace {

// Quantizes at most `block` values and subtracts q * scale from them. Returns the scale: zero if
// all q are zero, NaN if a value is out of range.
template <int bits>
float quantize(float* values, std::int64_t count, std::int8_t* quantized) {
  using Block = IntBlock<bits>;
  const std::uint32_t largest = largest_magnitude(values, count);
  if (largest < magnitude(Block::least)) {
    std::memset(quantized, 0, static_cast<std::size_t>(count));
    return 0;
  }
  if (largest >= magnitude(Block::beyond)) {
    std::fill_n(values, count, 0.0f);
    std::memset(quantized, 0, static_cast<std::size_t>(count));
    return std::numeric_limits<float>::quiet_NaN();
  }
  const float scale = std::bit_cast<float>(largest) / Block::levels, reciprocal = 1 / scale;
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) {
    const float q = std::rint(values[i] * reciprocal);
    quantized[i] = static_cast<std::int8_t>(static_cast<std::int32_t>(q));
    values[i] -= q * scale;
  }
  return scale;
}

void pack(const std::int8_t* quantized, std::int64_t count, std::int8_t* nibbles) {
  const std::int64_t half = (count + 1) / 2;
  std::int8_t high[IntBlock<4>::block / 2] = {};
  std::copy_n(quantized + half, count - half, high);
#pragma GCC ivdep
  for (std::int64_t i = 0; i < half; ++i)
    nibbles[i] = static_cast<std::int8_t>((quantized[i] & 0x0f) | (high[i] * 16));
}

void unpack(const std::int8_t* nibbles, std::int64_t count, std::int8_t* quantized) {
  const std::int64_t half = (count + 1) / 2;
#pragma GCC ivdep
  for (std::int64_t i = 0; i < half; ++i)  // the sign is the fourth bit
    quantized[i] = static_cast<std::int8_t>(((nibbles[i] & 0x0f) ^ 0x08) - 0x08);
#pragma GCC ivdep
  for (std::int64_t i = half; i < count; ++i)
    quantized[i] = static_cast<std::int8_t>(nibbles[i - half] >> 4);
}

}  // namespace

template <int bits>
void IntBlock<bits>::encode(float* values, std::int64_t count, std::byte* code) const {
  for (std::int64_t begin = 0; begin < count; begin += block, code += block_bytes(block)) {
    const std::int64_t size = std::min(block, count - begin);
    auto* body = reinterpret_cast<std::int8_t*>(code + sizeof(float));
    std::int8_t wide[block];
    const float scale = quantize<bits>(values + begin, size, bits == 8 ? body : wide);
    if (bits == 4) pack(wide, size, body);
    std::memcpy(code, &scale, sizeof(float));
  }
}

template <int bits>
void IntBlock<bits>::decode_sum(std::span<const std::byte* const> codes, std::int64_t count,
                                float* out) const {
  std::int8_t wide[block];
  sum_blocks(codes, count, block, out,
             [&wide](const std::byte* code, std::int64_t begin, std::int64_t size) {
               const std::byte* here = code + begin / block * block_bytes(block);
               float scale = 0;
               std::memcpy(&scale, here, sizeof(float));
               const auto* quantized = reinterpret_cast<const std::int8_t*>(here + sizeof(float));
               if (bits == 4) {
                 unpack(quantized, size, wide);
                 quantized = wide;
               }
               return [quantized, scale](std::int64_t i) {
                 return static_cast<float>(quantized[i]) * scale;
               };
             });
}

template class IntBlock<8>;
template class IntBlock<4>;

}  // namespace collectives
