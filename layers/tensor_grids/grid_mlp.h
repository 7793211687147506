#pragma once
// The two-layer perceptron of a transformer block over a grid: y = gelu(x W1 + b1) W2 + b2, with W1
// [hidden, ffn] the first and W2 [ffn, hidden] the second layer of a pair. The block of GELU's
// input is the block of its output, so ranks do not communicate between the two products.

#include <string>

#include "layers/tensor_grids/grid_linear.h"

namespace layers {

class GridMlp {
 public:
  // Kept from forward to backward_weights. backward_input frees inner and adds d_inner.
  struct Saved {
    machine::Tensor x, inner, active;      // x is the caller's
    machine::Tensor all_d_y, all_d_inner;  // 3d: the rows of the group that scatters them
  };

  GridMlp(const GridContext& context, const std::string& name, std::int64_t tokens,
          std::int64_t hidden, std::int64_t ffn, bool bias = true);

  void forward(const machine::Tensor& x, const machine::Tensor& y, Saved& saved,
               machine::Category kept);
  void backward_input(const machine::Tensor& d_y, const machine::Tensor& d_x, Saved& saved,
                      machine::Category kept);
  void backward_weights(Saved& saved);  // leaves saved empty

  GridParameters parameters();
  GridBlock input() const { return fc1_.input(); }
  GridBlock output() const { return fc2_.output(); }

 private:
  GridContext context_;
  GridLinear fc1_, fc2_;
};

}  // namespace layers
