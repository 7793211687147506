#pragma once
// The steps of a matrix product over a grid of ranks, as data. All ranks run the same steps. A step
// names an operand and the group that it moves in. GridMatmul executes plans; grid_plan_test.cpp
// proves that every partial product is added once and that every block returns to its owner.
//
//   for (const GridStep& step : grid_plan(grid, PairPlace::first, GridProduct::ab,
//   GridMethod::summa))
//
// result = left right (ab: the output), left rightᵀ (abt: the gradient of the input), leftᵀ right
// (atb: the gradient of the weights).

#include <string_view>
#include <vector>

#include "layers/tensor_grids/plans/tensor_grid.h"

namespace layers {

enum class GridProduct : unsigned char { ab, abt, atb };
inline constexpr GridProduct all_grid_products[] = {GridProduct::ab, GridProduct::abt,
                                                    GridProduct::atb};
enum class GridOperand : unsigned char { left, right, result };
// How a q x q grid multiplies. 2.5d uses summa; 1d and 3d have one method.
enum class GridMethod : unsigned char { summa, cannon };
std::string_view name(GridMethod method);
// Throws std::invalid_argument for an unknown name.
GridMethod grid_method(std::string_view name);

struct GridStep {
  enum class Action : unsigned char {
    multiply,        // the blocks that the rank has now
    broadcast,       // the block of `root` replaces the others' operands
    reduce,          // the sum of the group's products is the block of `root`
    all_gather,      // the operand becomes all rows of the group
    reduce_scatter,  // a rank keeps its rows of the sum of the group's products
    all_reduce,      // the result becomes the sum of the group's results
    skew,            // to the rank that is `turns` x (index in the crossing group) + offset before
    shift,           // to the next rank of the group
  };
  Action action = Action::multiply;
  GridOperand operand = GridOperand::result;
  GridAxis along = GridAxis::row;
  int root = 0;
  int turns = 0, offset = 0;
  bool adds = false;  // multiply adds to the result of earlier steps
  bool operator==(const GridStep&) const = default;

  // Returns how many places before itself in the group a rank at this place sends its block.
  int distance(GridPlace at) const {
    return turns * at.along(along == GridAxis::row ? GridAxis::column : GridAxis::row) + offset;
  }
};
using GridPlan = std::vector<GridStep>;

// Short constructors, for the algorithms.
inline GridStep multiply_step(bool adds = false) { return {.adds = adds}; }
inline GridStep move(GridStep::Action action, GridOperand operand, GridAxis along, int root = 0) {
  return {.action = action, .operand = operand, .along = along, .root = root};
}
inline GridStep skew(GridOperand operand, GridAxis along, int turns, int offset) {
  return {.action = GridStep::Action::skew,
          .operand = operand,
          .along = along,
          .turns = turns,
          .offset = offset};
}

// Groups of one rank have no steps. Throws std::invalid_argument for cannon outside of 2d.
GridPlan grid_plan(const TensorGrid& grid, PairPlace layer, GridProduct product, GridMethod method);

}  // namespace layers
