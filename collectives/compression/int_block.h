#pragma once
// 8 or 4 bits per element, and one float, the scale, for each block of 256: value ~ q * scale, with
// scale = largest magnitude / levels (127 or 7), and q rounded to nearest, ties to even. Gradients
// in 8 bits: Dettmers 2015, arXiv:1511.04561 (its linear quantization). A scale per block instead
// of one scale: Dettmers et al. 2021, arXiv:2110.02861. 4 bits with it: ZeRO++, Wang et al. 2023,
// arXiv:2306.10209.
//
// On the wire a block is its scale, then its q: with 8 bits n + 4 ceil(n / 256) bytes. With 4 bits
// a byte holds two, the second half of a block in the high bits, and an odd block ends with half a
// byte. |value - q * scale| <= scale (1/2 + levels * 4 u), u = 2^-24: half a step, and the
// roundings of the scale, its reciprocal, the quotient and the product.
//
// A block whose largest magnitude is below 2^-119 would have a subnormal scale; it is sent as
// zeros. A block with NaN, infinity, or 2^127 and above (levels * scale could overflow) arrives as
// NaN.

#include "collectives/compression/code.h"

namespace collectives {

template <int bits>
class IntBlock final : public Code {
  static_assert(bits == 8 || bits == 4);

 public:
  static constexpr std::int64_t block = 256;
  static constexpr int levels = (1 << (bits - 1)) - 1;
  static constexpr float least = 0x1p-119f, beyond = 0x1p127f;

  std::int64_t bytes(std::int64_t count) const override {
    return count / block * block_bytes(block) +
           (count % block == 0 ? 0 : block_bytes(count % block));
  }
  void encode(float* values, std::int64_t count, std::byte* code) const override;
  void decode_sum(std::span<const std::byte* const> codes, std::int64_t count,
                  float* out) const override;

 private:
  static constexpr std::int64_t block_bytes(std::int64_t count) {
    return static_cast<std::int64_t>(sizeof(float)) + (count * bits + 7) / 8;
  }
};

using Int8Block = IntBlock<8>;
using Int4Block = IntBlock<4>;

}  // namespace collectives
