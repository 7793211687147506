#pragma once
// 3D: Bian et al. 2021, arXiv:2105.14450, after Agarwal et al. 1995
// (doi:10.1147/rd.395.0575). Rank (i, j, k) of an l x l x l grid computes one product, X_ij W_jk,
// of blocks 1/l². Each matrix is stored in pieces 1/l³ along the axis that its block does not name:
//
//   X_ij is gathered along the depth (k), W_jk along the column (i), and Y_ik is the sum along the
//   row (j), scattered to it.
//
// The gradients exchange the roles. The second layer of a pair exchanges row and depth.

#include "layers/tensor_grids/plans/grid_plan.h"

namespace layers {

inline GridPlan bian(GridProduct product, PairPlace layer, int l) {
  using enum GridStep::Action;
  using enum GridOperand;
  if (l == 1) return {multiply_step()};
  const bool first = layer == PairPlace::first;
  const GridAxis of_x = first ? GridAxis::depth : GridAxis::row, of_w = GridAxis::column,
                 of_y = first ? GridAxis::row : GridAxis::depth;
  const auto plan = [](GridAxis of_left, GridAxis of_right, GridAxis of_result) -> GridPlan {
    return {move(all_gather, left, of_left), move(all_gather, right, of_right), multiply_step(),
            move(reduce_scatter, result, of_result)};
  };
  switch (product) {
    case GridProduct::ab:
      return plan(of_x, of_w, of_y);
    case GridProduct::abt:
      return plan(of_y, of_w, of_x);
    case GridProduct::atb:
      break;
  }
  return plan(of_x, of_y, of_w);
}

}  // namespace layers
