#pragma once
// SUMMA (van de Geijn and Watts 1997, Concurrency: Practice and Experience 9, 255) on a q x q grid,
// with the two transposed products of Optimus (Xu et al. 2021, arXiv:2104.05343, algorithms 1 to
// 3):
//
//   ab    C_ij = sum over l of A_il B_lj
//         A_il goes from column l to row i, B_lj from row l to column j
//   abt   C_il = sum over j of A_ij B_ljᵀ
//         B_lj goes from row l to column j, the sum to column l
//   atb   C_lj = sum over i of A_ilᵀ B_ij
//         A_il goes from column l to row i, the sum to row l

#include "layers/tensor_grids/plans/grid_plan.h"

namespace layers {

inline GridPlan summa(GridProduct product, int q) {
  using enum GridStep::Action;
  using enum GridOperand;
  if (q == 1) return {multiply_step()};
  GridPlan plan;
  for (int l = 0; l < q; ++l) {
    if (product != GridProduct::abt) plan.push_back(move(broadcast, left, GridAxis::row, l));
    if (product != GridProduct::atb) plan.push_back(move(broadcast, right, GridAxis::column, l));
    plan.push_back(multiply_step(product == GridProduct::ab && l > 0));
    if (product == GridProduct::abt) plan.push_back(move(reduce, result, GridAxis::row, l));
    if (product == GridProduct::atb) plan.push_back(move(reduce, result, GridAxis::column, l));
  }
  return plan;
}

}  // namespace layers
