#pragma once
// LayerNorm over a grid of ranks: y = gain (x - mean) / sqrt(variance + epsilon) + bias, of blocks
// that are split as the input of a pair's first layer.
//
// A row's columns are split over the ranks of a row of the grid. Forward all-reduces the sums of x
// and x² there, two accumulators per row; backward those of the gradient (Xu et al. 2021,
// arXiv:2104.05343). In 1d every rank has whole rows, without communication. Gain
// and bias move as biases do (grid_vector.h): forward gathers both, backward_input the gain again.

#include <memory>
#include <string>

#include "layers/tensor_grids/grid_vector.h"
#include "machine/device/split_norm.h"

namespace layers {

class GridNorm {
 public:
  // One accumulator per row each, kept from forward to backward_weights.
  struct Statistics {
    machine::Tensor mean, rstd;
  };

  // Throws std::invalid_argument unless the grid divides the sizes.
  GridNorm(const GridContext& context, const std::string& name, std::int64_t tokens,
           std::int64_t hidden, double epsilon = 1e-5);

  void forward(const machine::Tensor& x, const machine::Tensor& y, Statistics& statistics,
               machine::Category kept);
  void backward_input(const machine::Tensor& x, const Statistics& statistics,
                      const machine::Tensor& d_y, const machine::Tensor& d_x);
  void backward_weights(const machine::Tensor& x, const Statistics& statistics,
                        const machine::Tensor& d_y);

  GridParameters parameters() { return {&gain_.parameter(), &bias_.parameter()}; }
  GridBlock block() const { return block_; }

 private:
  machine::Tensor sums_of_rows() const;  // [2, rows]
  void add_up(const machine::Tensor& sums) const;

  GridContext context_;
  std::int64_t hidden_;
  double epsilon_;
  GridBlock block_;
  GridVector gain_, bias_;
  std::shared_ptr<const machine::SplitNorm> norm_;
};

}  // namespace layers
