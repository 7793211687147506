#pragma once
// The placement of a parameter over the grid, and the parameter itself. Layers declare placements.
// ZeRO builds the gradient plan from them only.

#include <string>

#include "machine/device/kernels.h"
#include "machine/device/tensor.h"
#include "machine/world/grid.h"

namespace collectives {

enum class Spread : unsigned char {
  replicated,  // every rank of the axis holds the whole
  sharded,     // rank i of the axis holds the i-th of equal parts along dim
};

struct Placement {
  Spread tp = Spread::replicated;
  int dim = 0;  // the extent that tp cuts
  // Replicated over tp, but each rank's gradient covers only its part of the tokens (sequence
  // parallelism): the gradients are summed over tp.
  bool gradient_partial_over_tp = false;
  // Held by this stage and the one opposite, as far from the other end (the first and the last, of
  // a tied embedding; all, where a pipeline has two copies of the model): gradients are summed over
  // the two.
  bool tied_over_pp = false;
};

// What a parameter's initial values depend on.
enum class Role : unsigned char {
  weight,
  residual,  // the weight of a projection that ends in a residual sum
  bias,
  gain,
};

struct Parameter {
  std::string name;  // global: "blocks.3.mlp.fc1.weight", the same on every rank that holds it
  machine::Shape global_shape;
  Placement placement;
  Role role = Role::weight;
  int layer = 0;             // of the model: 0 the embeddings, 1 + i block i, then the output head
  bool weight_decay = true;  // false for biases and one-dimensional parameters, as in Megatron
  machine::Tensor value;     // the local shard, compute dtype
  machine::Tensor gradient;  // same shape; float under bfloat16 and half, else the value's dtype

  // The local shape of global_shape under placement. Throws std::invalid_argument naming the
  // parameter, the extent and the degree when it does not divide.
  static machine::Shape local_shape(const std::string& name, machine::Shape global_shape,
                                    const Placement& placement, int tp);
  // The place of the local shard in the global matrix. Random initial values are keyed by it.
  machine::Region region(int tp_rank) const;
};

machine::Dtype gradient_dtype(machine::Dtype value);

}  // namespace collectives
