#pragma once
// Executes the plans of matrix products over a grid (grid_plan.h).
//
//   GridMatmul matmul(context, PairPlace::first);
//   GridOperands forward{.left = x, .right = weight, .result = y};
//   matmul.run(GridProduct::ab, forward);
//
// left, right and result are the rank's own blocks. Operands of other ranks, and sums that move,
// are in buffers that live as long as the call. The result of atb has the dtype of gradients, the
// sums of all others round to the context's dtype after each product and each addition of a group.

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "layers/tensor_grids/grid_context.h"

namespace layers {

struct GridOperands {
  machine::Tensor left{}, right{}, result{};
  bool adds = false;  // to `result`
  // Operands that an earlier product gathered (3d). If they are empty, run gathers them. The
  // gathered left operand is kept here, in memory of kept_left.
  machine::Tensor whole_left{}, whole_right{};
  machine::Category kept_left = machine::Category::buffers;
};

class GridMatmul {
 public:
  GridMatmul(const GridContext& context, PairPlace layer) : context_(context), layer_(layer) {}

  void run(GridProduct product, GridOperands& operands);

 private:
  // Sends the block to the rank `distance` places before this one. Returns false, without a
  // message, if that is this rank.
  bool send_back(GridAxis axis, int distance, const machine::Tensor& from,
                 const machine::Tensor& to);
  collectives::Communicator& group(GridAxis axis) const { return *context_.groups.find(axis); }

  GridContext context_;
  PairPlace layer_;
  // By group, distance and elements: a communicator keeps plans by the address of a matrix.
  std::map<std::tuple<GridAxis, int, std::int64_t>,
           std::shared_ptr<const collectives::TrafficMatrix>>
      skews_;
};

}  // namespace layers
