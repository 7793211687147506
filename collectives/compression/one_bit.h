#pragma once
// One bit per element, its sign, and one float, the scale: value ~ +-scale with scale = |values| /
// sqrt(count), so the code has the 2-norm of its values (1-bit Adam: Tang et al. 2021,
// arXiv:2102.02888, section 3). A sign of 1 bit without a scale per element: Seide et al.,
// Interspeech 2014. With a reduce-scatter every share has its own scale.
//
// On the wire n elements are 4 + ceil(n / 8) bytes, and none if n is 0: element 8 j + b is bit b of
// byte j after the scale, set if the value is negative. |value - decoded| = ||value| - scale| <=
// max(|value|, scale), and three roundings: of the scale, and of the difference.
//
// Zero is sent as +scale. If a value is not finite, all values arrive as NaN.

#include "collectives/compression/code.h"

namespace collectives {

class OneBit final : public Code {
 public:
  std::int64_t bytes(std::int64_t count) const override {
    return count == 0 ? 0 : static_cast<std::int64_t>(sizeof(float)) + (count + 7) / 8;
  }
  void encode(float* values, std::int64_t count, std::byte* code) const override;
  void decode_sum(std::span<const std::byte* const> codes, std::int64_t count,
                  float* out) const override;
};

}  // namespace collectives
