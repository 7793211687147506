#pragma once
// Chooses the scales of one tensor of a linear layer, and encodes it. The recipes are in the files
// of their names.
//
//   const Scales scales = quantizer.choose(x, Category::activations);   // may be collective
//   const Quantized codes = quantizer.encode(x, scales, Along::cols, Category::buffers);
//
// choose runs once a pass. A later half of backward encodes the same tensor with the same scales.

#include <memory>

#include "collectives/communicator/communicator.h"
#include "layers/fp8/options.h"
#include "layers/fp8/quantized.h"

namespace layers {

// The scales of a recipe with one scale per tensor: float [1]. Empty for blocks, whose scales
// follow from the values.
struct Scales {
  machine::Tensor scale, inverse;
};

class Quantizer {
 public:
  virtual ~Quantizer() = default;
  // Results are in memory of `category`.
  virtual Scales choose(const machine::Tensor& values, machine::Category category) = 0;
  virtual Quantized encode(const machine::Tensor& values, const Scales& scales, Along along,
                           machine::Category category) const = 0;
};

// Returns memory for the scale of one tensor.
Scales one_scale(machine::Device& device, machine::Category category);
// Encodes a tensor with one scale.
Quantized encode_whole(const machine::Tensor& values, machine::Dtype float8, const Scales& scales,
                       machine::Category category);

// amax_group: the ranks that hold shards of the tensor; null: none.
std::unique_ptr<Quantizer> make_tensorwise(machine::Dtype float8,
                                           collectives::Communicator* amax_group);
// weight: blocks of 128 x 128, else of 128 along the sum.
std::unique_ptr<Quantizer> make_blockwise(machine::Dtype float8, bool weight);
std::unique_ptr<Quantizer> make_mxfp8(machine::Dtype float8);

}  // namespace layers
