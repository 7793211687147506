#pragma once
// Tesseract (Wang et al. 2021, arXiv:2105.14500): 2.5 dimensions. Each of the d layers
// of a q x q x d grid has 1/d of the rows of A, and multiplies them with its own copy of B by
// SUMMA. The gradient of B is summed over the depth.

#include "layers/tensor_grids/plans/summa.h"

namespace layers {

inline GridPlan tesseract(GridProduct product, int q, int depth) {
  GridPlan plan = summa(product, q);
  if (product == GridProduct::atb && depth > 1)
    plan.push_back(move(GridStep::Action::all_reduce, GridOperand::result, GridAxis::depth));
  return plan;
}

}  // namespace layers
