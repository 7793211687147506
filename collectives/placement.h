#pragma once
// The placement of a parameter over the grid, and the parameter itself. Layers declare placements.
// ZeRO builds the gradient plan from them only.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "machine/device/kernels.h"
#include "machine/device/tensor.h"
#include "machine/world/grid.h"

namespace collectives {

enum class Spread : unsigned char {
  replicated,  // every rank of the axis holds the whole parameter
  sharded,     // rank i of the axis holds the i-th of equal parts along dim
};

// The block of a parameter that a rank of a tensor-parallel grid holds
// (layers/tensor_grids/plans/tensor_grid.h): rows [row, row + rows) and columns [col, col + cols)
// of the global matrix, a vector being one row. transposed: stored as [cols, rows].
struct PlacedBlock {
  std::int64_t row = 0, col = 0, rows = 0, cols = 0;
  bool transposed = false;
  int copies = 1;  // ranks of tp that hold the same block
};

struct Placement {
  Spread tp = Spread::replicated;
  int dim = 0;  // the dimension that tp shards
  // Replicated over tp, but each rank's gradient covers only its part of the tokens (sequence
  // parallelism). The gradients are summed over tp.
  bool gradient_partial_over_tp = false;
  // Held by this stage and the opposite stage, which has the same distance from the other end.
  // These are the first and the last stage for a tied embedding, and all stages if a pipeline has
  // two copies of the model. The gradients are summed over the two stages.
  bool tied_over_pp = false;
  // The block of a rank of a grid, in place of tp and dim. Other ranks of tp may hold other
  // parameters.
  std::optional<PlacedBlock> block = {};
  // For a parameter of an expert: etp ranks hold its parts in place of the ranks of tp, and this
  // rank holds part etp_rank (layers/experts/expert_groups.h). 0: not of an expert.
  int etp = 0, etp_rank = 0;

  bool is_of_expert() const { return etp > 0; }
  // Return the number of parts of a sharded parameter, or of copies of a replicated one, and the
  // one that a rank of tp holds.
  int parts(int tp) const { return is_of_expert() ? etp : tp; }
  int part(int tp_rank) const { return is_of_expert() ? etp_rank : tp_rank; }
};

// The role of a parameter, which determines its initial values.
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
  bool layer_writes_first_sum = false;  // it multiplies by kept_gradient() in each sum
  bool gradient_is_stale = false;       // of an earlier step, to be written over or cleared

  // Returns the local shape of global_shape under placement. Throws std::invalid_argument that
  // names the parameter, the extent and the degree if the degree does not divide the extent.
  static machine::Shape local_shape(const std::string& name, machine::Shape global_shape,
                                    const Placement& placement, int tp);
  // Returns the place of the local shard in the global matrix. Random initial values are keyed by
  // it. For a transposed block, the place is that of the block, which is stored in the other order.
  machine::Region region(int tp_rank) const;

  // Returns the factor of the gradient's old values in the next sum: 0 if they are stale.
  float kept_gradient() { return std::exchange(gradient_is_stale, false) ? 0.0F : 1.0F; }
  void clear_stale_gradient(machine::Kernels& kernels) {
    if (kept_gradient() == 0) kernels.fill(gradient, 0);
  }
};

machine::Dtype gradient_dtype(machine::Dtype value);

}  // namespace collectives
