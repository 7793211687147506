#pragma once
// A step of AdamW whose moments are codes of 8 bits (Dettmers et al. 2022, arXiv:2110.02861;
// bitsandbytes' AdamW8bit): a moment is S q, where S is the largest magnitude of its block of 256
// elements, in float, and q a number of the dynamic map (dynamic_map.h), signed for m and unsigned
// for v. The paper's blocks have 2048 elements, those of bitsandbytes 256 since version 0.44.
//
//   m = beta1 S1 q1 + (1 - beta1) g, v = beta2 S2 q2 + (1 - beta2) g²   in float
//   the update of AdamW (kernels.h) from this m and v
//   S1 = max |m| of the block, q1 = the number nearest to m / S1; the same for v
//
// So the update has no error of codes of its own step. m / S is rounded to float, and so is the
// middle of two numbers of the map; a middle has the smaller code. A block without a moment has S =
// 0. A block with NaN or infinity decodes as NaN. (bitsandbytes moves m's code by one if its sign
// would be lost, which the paper does not.)
//
// Blocks count from the first element; the last may be shorter. Weights are float, bfloat16 or
// half, gradients float or of the weights' dtype, the master is float (the weights themselves if
// they are float). CUDA has one row of a launch for a block (adamw_8bit_bodies.h), the host loops
// over it (adamw_8bit_host.h), with the same bits.

#include <cstdint>

#include "machine/device/kernels.h"
#include "machine/device/tensor.h"

namespace machine {

inline constexpr std::int64_t moment_block = 256;  // elements

constexpr std::int64_t moment_blocks(std::int64_t elements) {
  return (elements + moment_block - 1) / moment_block;
}

struct Moments8Bit {
  Tensor first, second;  // uint8 [elements]
  Tensor scales;         // float [2, blocks]: of m, then of v
};
// Returns moments of zero.
Moments8Bit zero_moments(Device& device, std::int64_t elements, Category category);

// Like Kernels::adamw. Throws std::logic_error for shapes or dtypes that do not match.
void adamw_8bit(Stream& stream, const Tensor& gradient, double gradient_scale, const AdamW& options,
                std::int64_t step, const std::uint8_t* decay_mask, const Tensor& master,
                const Moments8Bit& moments, const Tensor& weight);

}  // namespace machine
