#pragma once
// 1D: Shoeybi et al. 2019, arXiv:1909.08053, section 3. The first layer splits the columns of W, so
// the gradient of its replicated input is a sum; the second splits the rows of W, so its output is.

#include "layers/tensor_grids/plans/grid_plan.h"

namespace layers {

inline GridPlan megatron(GridProduct product, PairPlace layer, int ranks) {
  const bool sums = product == (layer == PairPlace::first ? GridProduct::abt : GridProduct::ab);
  if (!sums || ranks == 1) return {multiply_step()};
  return {multiply_step(), move(GridStep::Action::all_reduce, GridOperand::result, GridAxis::row)};
}

}  // namespace layers
