#pragma once
// 8 bits an element and one float, its scale, for each block of 256: value ~ q * scale, with scale
// = largest magnitude / 127 and q rounded to nearest, ties to even. Gradients in 8 bits: Dettmers
// 2015, arXiv:1511.04561 (of whose 8-bit types this is linear quantization); a scale for each block
// instead of one for all: Dettmers et al. 2021, arXiv:2110.02861.
//
// On the wire: n + 4 ceil(n / 256) bytes; a block is its scale, then its q.
// |value - q * scale| <= scale (1/2 + 127 * 4 u), u = 2^-24: half a step, and the roundings of the
// scale, its reciprocal, the quotient and the product.
// A block whose largest magnitude is below 2^-119, where a scale would be subnormal, is sent as
// zeros. A block that holds NaN, infinity, or 2^127 and above, where 127 scales could overflow,
// arrives as NaN, all of it.

#include <string_view>

#include "collectives/compression/code.h"

namespace collectives {

class Int8Block final : public Code {
 public:
  static constexpr std::string_view paper = "Dettmers 2015, arXiv:1511.04561";
  static constexpr std::int64_t block = 256;
  static constexpr float least = 0x1p-119f, beyond = 0x1p127f;

  std::int64_t bytes(std::int64_t count) const override {
    return count + (count + block - 1) / block * static_cast<std::int64_t>(sizeof(float));
  }
  void encode(float* values, std::int64_t count, std::byte* code) const override;
  void decode_sum(std::span<const std::byte* const> codes, std::int64_t count,
                  float* out) const override;
};

}  // namespace collectives
