#pragma once
// Bytes on the wire and in memory of linear layers over a grid of ranks, in closed form. The
// oracles compare these with the counted values, exactly. Shares no code with the plans or the
// layers.
//
// Notation: Y [M, F] = X [M, K] W [K, F] over p ranks; q columns, d layers, l = q of 3d; E bytes of
// a value, G of a gradient. Elements that a rank receives in forward, for d_X, and for d_W, without
// the bias (sent on average over the ranks: the same):
//
//   1d    0; 2 MK (p-1)/p (all-reduce); 0. Second layer: 2 MF (p-1)/p; 0; 0
//   2d    (q-1) (MK + KF)/q² each by SUMMA (Xu et al. 2021, arXiv:2104.05343: (MK + KF)/q²
//         per broadcast, q broadcasts)
//         Cannon: (q-1) (MK + KF)/q², and a skew: MK/q² unless i = 0, KF/q² unless j = 0
//   2.5d  (q-1) (MK/d + KF)/q² each, and d_W 2 KF/q² (d-1)/d of the all-reduce over the depth (Wang
//         et al. 2021, arXiv:2105.14500)
//   3d    (l-1) (MK + KF + MF)/l³; the same; (l-1) (MK + KF)/l³ (Bian et al. 2021,
//         arXiv:2105.14450; forward keeps its piece of X only, d_W uses the d_Y of d_X again)
//
// A norm: two accumulators for each row of the rank by an all-reduce over the row of the grid,
// forward and backward. A bias or a gain: 2d F/q from row 0 and, in the gradient's dtype, back; 3d
// F/l² from the diagonal and an all-gather of F/l, and both back.
//
// Parameters of a rank: 1d KF/p, 2d KF/q², 2.5d KF/q², 3d KF/l³. Activations: 1d MK, 2d MK/q²,
// 2.5d MK/dq², 3d MK/l³.
//
// Peaks of buffers of the three passes:
//
//   1d    0
//   2d    SUMMA: (MK + KF) E/q² each, with G for KF of d_W, and another KF G/q²: a sum that is
//         communicated is added to the gradient at the end. Cannon: twice as much, because a block
//         arrives while another is sent
//   2.5d  with MK/d as 2d
//   3d    (MK + KF + MF) E/l²: whole operands and the sum before it is scattered, with G for KF of
//         d_W, and KF G/l³. d_Y (MF E/l²) is kept from the second to the third pass.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "collectives/communicator/calls.h"
#include "layers/tensor_grids/plans/tensor_grid.h"
#include "machine/device/dtype.h"
#include "machine/link/link.h"

namespace layers {

using GridMessages = std::map<std::string, std::map<machine::TrafficLabel, machine::Traffic>>;

struct GridLinearCase {
  TensorParallelMode mode = TensorParallelMode::one_d;
  int q = 1, depth = 1;  // ranks: q, q², q² depth, q³
  GridPlace place{};
  bool cannon = false;
  PairPlace layer = PairPlace::first;
  std::int64_t tokens = 1, in = 1, out = 1;
  bool bias = true;
  machine::Dtype dtype = machine::Dtype::float32;
};

struct GridPass {
  std::vector<collectives::CollectiveCalls> calls;
  GridMessages messages;  // in addition to the calls
  std::size_t buffers = 0;
};

struct GridLinearCost {
  GridPass forward, backward_input, backward_weights;
  std::int64_t parameters = 0;  // elements of a rank
  std::size_t kept = 0;         // bytes from backward_input for backward_weights
};
GridLinearCost grid_linear_cost(const GridLinearCase& c);

// Returns the cost of a token embedding. The table has c.in rows and c.out columns. c.layer and
// c.bias are not used. 2d: broadcasts of q blocks KF/q² along a column, and their sums in the
// gradient's dtype back; 3d: a gather of KF/l², a sum of MF/l², and both back. backward_input is
// empty.
GridLinearCost grid_embedding_cost(const GridLinearCase& c);

// Returns the cost of an output layer with that table, which is the layer in reverse: logits
// [tokens, c.in] are the product for the gradient of the input, and the gradient of the output
// layer's input is its forward. No operand is kept between the passes: 3d gathers (l-1) (MK + KF +
// MF)/l³ in each.
GridLinearCost grid_head_cost(const GridLinearCase& c);

struct GridNormCost {
  GridPass forward, backward_input, backward_weights;
  std::int64_t parameters = 0;  // elements of a rank
  std::size_t kept = 0;         // bytes from forward for backward
};
// Returns the cost of a norm over c.out columns. c.in, c.layer and c.bias are not used.
GridNormCost grid_norm_cost(const GridLinearCase& c);

}  // namespace layers
