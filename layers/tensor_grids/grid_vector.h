#pragma once
// A vector of the columns of a layer's output over a grid, such as a bias or a gain, and its
// gradient, as the papers store and move them:
//
//   1d         in parts of F/p (first layer) or on every rank (second): no communication
//   2d, 2.5d   parts of F/q on row 0 (Optimus): a broadcast along each column, and a
//              reduction of the column sums of d_y back; 2.5d all-reduces them over the depth
//   3d         pieces of F/l² on the diagonal j = k (Bian et al.): a broadcast from
//              the diagonal and an all-gather along the column; a reduce-scatter and a reduction
//              back
//
//   kernels.add_bias(y, bias.whole(), y);
//   const Tensor sums = bias.gradient_sums();
//   kernels.accumulate_column_sums(d_y, sums);
//   bias.add_gradient(sums);

#include <string>

#include "layers/tensor_grids/grid_context.h"

namespace layers {

class GridVector {
 public:
  // Makes a vector of sizes.out columns, which a layer at this place splits.
  GridVector(const GridContext& context, const std::string& name, PairPlace layer,
             const GridSizes& sizes, collectives::Role role = collectives::Role::bias);

  // Returns the values of this rank's columns, in buffers unless the rank stores them.
  machine::Tensor whole() const;
  // Returns the tensor to which a rank adds the sums over its own rows: the gradient itself, or
  // zeros that add_gradient adds up.
  machine::Tensor gradient_sums() const;
  void add_gradient(const machine::Tensor& sums) const;

  GridParameter& parameter() { return vector_; }

 private:
  bool in_pieces() const { return context_.grid().mode == TensorParallelMode::three_d; }
  bool communicates() const {
    return context_.grid().mode != TensorParallelMode::one_d && context_.grid().ranks() > 1;
  }
  // The group to which a rank of the columns stores the vector for, and that rank.
  GridAxis axis() const;
  int root() const;

  GridContext context_;
  PairPlace layer_;
  std::int64_t columns_;  // of this rank
  GridParameter vector_;
};

}  // namespace layers
