#pragma once
// The bias of a linear layer over a grid, and its gradient, as the papers store and move them:
//
//   1d         in parts of F/p (first layer) or on every rank (second): no communication
//   2d, 2.5d   parts of F/q on row 0 (Optimus, section 3.2.2): a broadcast along each column, and a
//              reduction of the column sums of d_y back; 2.5d all-reduces them over the depth
//   3d         pieces of F/l² on the diagonal j = k (Bian et al., section 3.2): a broadcast from
//              the diagonal and an all-gather along the column; a reduce-scatter and a reduction
//              back

#include <string>

#include "layers/tensor_grids/grid_context.h"

namespace layers {

class GridBias {
 public:
  GridBias(const GridContext& context, const std::string& name, PairPlace layer,
           const GridSizes& sizes);

  void add_to(const machine::Tensor& y) const;
  // d_y: the rank's own block.
  void add_gradient(const machine::Tensor& d_y) const;

  GridParameter& parameter() { return bias_; }

 private:
  machine::Tensor whole() const;  // for the columns of y
  // The group along which Y is scattered (3d) or stored (column), and the rank that stores the
  // bias.
  GridAxis axis() const;
  int root() const;

  GridContext context_;
  PairPlace layer_;
  std::int64_t columns_;  // of y
  GridParameter bias_;
};

}  // namespace layers
