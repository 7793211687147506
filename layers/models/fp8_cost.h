#pragma once
// The cost of the 8-bit products of a stage's blocks in closed form: their collectives, and the
// memory of each product. gpt_cost.h and gpt_memory.h add them to the other tensors and calls.
//
// Notation of gpt_cost.h: n tokens of a micro-batch on this rank, h hidden, t = tp. B: the elements
// that share a scale along the sum of a product, 128 or 32; a scale has 4 or 1 bytes. With one
// scale a tensor there are no blocks.
//
//                     forward                   backward_input            backward_weights
//   a layer, over tp with sequence parallelism (besides the reduce-scatters of gpt_cost.h):
//     codes           2 all-gathers n h         2 all-gathers n h         2 all-gathers n h
//     with blocks                               4
//     their scales    2 of n h/B                4 of n h/B                2 of n h/B
//     tensorwise      2 all-reduces of 1 float  2 of 1
//   delayed, over the ranks that share amaxes:
//                     4 all-reduces of 2        4 of 1

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "layers/models/gpt_cost.h"

namespace layers {

enum class Fp8Pass : unsigned char { forward, backward_input, backward_weights };
std::vector<CollectiveCalls> fp8_calls(const GptConfig& config, const StageCase& stage,
                                       Fp8Pass pass);

// Bytes of one linear layer in 8 bits for a micro-batch, without the tensors of its caller.
struct Fp8LinearMemory {
  // While the product runs, or an operand is encoded: both operands as codes with scales. If the
  // product is emulated, both as floats, and the float sums of a narrower result. If a GPU's
  // library computes it, the copies of machine/device/float8/scaled_gemm.h.
  std::size_t forward = 0, backward_input = 0, backward_weights = 0;
  std::size_t scale = 0;  // of x, from forward to backward_weights, with its inverse
  std::size_t scale_of_d_y = 0, inverse_of_d_y = 0;  // during and after backward_input
  std::size_t gathered = 0, gathered_scales = 0;  // of d_y, from backward_input to backward_weights
  // After the product of backward_input: the own codes of d_y along its rows, and the gathered
  // ones, which are buffers if backward_weights follows at once.
  std::size_t gathered_again = 0;
  std::size_t bias_sums = 0;  // columns of a gathered d_y, as long as its codes
  std::size_t state = 0;      // between micro-batches
};
struct Fp8BlockMemory {
  Fp8LinearMemory qkv, projection, fc1, fc2;
  bool on() const { return qkv.forward > 0; }
  std::size_t state() const { return qkv.state + projection.state + fc1.state + fc2.state; }
};
// Returns zeros without stage.fp8.
Fp8BlockMemory fp8_memory(const GptConfig& config, const StageCase& stage);

// Returns the reason that a product of the stage's blocks is emulated on a GPU of
// stage.compute_capability, or an empty text if its library computes all of them.
std::string why_emulated_fp8(const GptConfig& config, const StageCase& stage);

// Returns the bytes of scales and histories of all blocks of the stage, in Category::buffers from
// the first micro-batch on.
std::size_t fp8_state(const GptConfig& config, const StageCase& stage);

}  // namespace layers
