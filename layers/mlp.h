#pragma once
// The two-layer perceptron of a transformer block (Shoeybi et al. 2019, arXiv:1909.08053, section
// 3): column-parallel, GELU, row-parallel, so nothing is communicated between the two.
//
//   y [tokens, hidden] = all_reduce(gelu(x W1ᵀ + b1) W2ᵀ) + b2,   W1 [ffn/tp, hidden], W2 [hidden,
//   ffn/tp]
//
// Communication: that of the two layers. Where it says `kept`, what a later call needs is taken
// under that category.

#include <cstdint>
#include <string>

#include "layers/column_parallel_linear.h"
#include "layers/context.h"
#include "layers/row_parallel_linear.h"

namespace layers {

class Mlp {
 public:
  // From forward to backward_weights. backward_input frees inner and adds d_inner.
  struct Saved {
    machine::Tensor x, inner, active;  // x is the caller's; before and after GELU [tokens, ffn/tp]
    machine::Tensor all_d_y, d_inner;  // of all rows; without sequence parallelism the caller's d_y
  };

  Mlp(const Context& context, const std::string& name, std::int64_t hidden, std::int64_t ffn);

  void forward(const machine::Tensor& x, const machine::Tensor& y, Saved& saved,
               machine::Category kept);
  void backward_input(const machine::Tensor& d_y, const machine::Tensor& d_x, Saved& saved,
                      machine::Category kept);
  void backward_weights(Saved& saved);  // leaves saved empty

  void initialize(const Initializer& initializer);
  Parameters parameters();

 private:
  Context context_;
  std::int64_t width_;  // of this rank: ffn/tp
  ColumnParallelLinear fc1_;
  RowParallelLinear fc2_;
};

}  // namespace layers
