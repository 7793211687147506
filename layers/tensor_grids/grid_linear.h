#pragma once
// A linear layer over a grid of ranks (tensor_grid.h): y = x W + b, with blocks of x, y, W and b.
//
//   GridLinear fc1(context, "fc1", {tokens, in, out}, {.layer = PairPlace::first});
//   fc1.forward(x, y);
//   Tensor all_d_y = fc1.backward_input(d_y, d_x);    // d_x = d_y Wᵀ
//   fc1.backward_weights(x, all_d_y);                 // d_W += xᵀ d_y
//
// The communication of the products is in their plans (grid_plan.h), that of the bias in
// grid_vector.h, and its cost in grid_cost.h. In 3d backward_input gathers the gradient of the
// output for both halves; the input is gathered again for the weights, so that only the own piece
// is kept.

#include <string>

#include "layers/tensor_grids/grid_matmul.h"
#include "layers/tensor_grids/grid_vector.h"

namespace layers {

struct GridLinearOptions {
  bool bias = true;
  PairPlace layer = PairPlace::first;
  collectives::Role role = collectives::Role::weight;  // of the weight
};

class GridLinear {
 public:
  // Throws std::invalid_argument unless the grid divides the sizes.
  GridLinear(const GridContext& context, const std::string& name, const GridSizes& sizes,
             const GridLinearOptions& options = {});

  void forward(const machine::Tensor& x, const machine::Tensor& y);
  // Returns the gradient of the output for backward_weights: d_y, or its rows of the group that
  // scatters y (3d), in memory of category `kept`.
  machine::Tensor backward_input(const machine::Tensor& d_y, const machine::Tensor& d_x,
                                 machine::Category kept = machine::Category::buffers);
  void backward_weights(const machine::Tensor& x, const machine::Tensor& all_d_y);

  GridParameters parameters();
  GridBlock input() const { return input_; }
  GridBlock output() const { return output_; }

 private:
  GridContext context_;
  GridLinearOptions options_;
  GridBlock input_, output_;
  GridMatmul matmul_;
  GridParameter weight_;
  GridVector bias_;
};

}  // namespace layers
