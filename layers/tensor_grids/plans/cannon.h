#pragma once
// Cannon 1969 (A cellular computer to implement the Kalman filter algorithm, Montana State
// University): after a first exchange, blocks of a q x q grid move to neighbours only. Before the
// first product row i of A is moved back by i and column j of B by j, so that rank (i, j) has A_il
// and B_lj with l = i + j. After each product both move on by one, to l - 1.
//
//   ab    A and B move, C stays
//   abt   A stays, B moves and brings B_lj, l = i + j - t in step t. The sum C_il moves along row i
//         and meets its last term at column l - i - 1, from where it goes to column l.
//   atb   B stays, A moves, C_lj moves along column j
//
// Cannon moves blocks to the previous rank; here they move to the next one, which is the same
// algorithm with l counted down. The transposed products replace one moving operand by the moving
// result, so that no block is transposed on the wire.

#include "layers/tensor_grids/plans/grid_plan.h"

namespace layers {

inline GridPlan cannon(GridProduct product, int q) {
  using enum GridOperand;
  if (q == 1) return {multiply_step()};
  const bool left_moves = product != GridProduct::abt, right_moves = product != GridProduct::atb;
  const GridAxis of_result = product == GridProduct::abt ? GridAxis::row : GridAxis::column;
  const bool result_moves = product != GridProduct::ab;
  GridPlan plan;
  if (left_moves) plan.push_back(skew(left, GridAxis::row, 1, 0));
  if (right_moves) plan.push_back(skew(right, GridAxis::column, 1, 0));
  for (int step = 0; step < q; ++step) {
    plan.push_back(multiply_step(step > 0));
    if (step == q - 1) break;
    if (left_moves) plan.push_back(move(GridStep::Action::shift, left, GridAxis::row));
    if (right_moves) plan.push_back(move(GridStep::Action::shift, right, GridAxis::column));
    if (result_moves) plan.push_back(move(GridStep::Action::shift, result, of_result));
  }
  if (result_moves) plan.push_back(skew(result, of_result, -1, -1));
  return plan;
}

}  // namespace layers
