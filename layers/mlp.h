#pragma once
// The two-layer perceptron of a transformer block (Shoeybi et al. 2019, arXiv:1909.08053, section
// 3): column-parallel, GELU, row-parallel, so the ranks do not communicate between the two.
//
//   y [tokens, hidden] = all_reduce(gelu(x W1ᵀ + b1) W2ᵀ) + b2,   W1 [ffn/tp, hidden], W2 [hidden,
//   ffn/tp]
//
// With config.swiglu (Shazeer 2020, arXiv:2002.05202) all_reduce((silu(x Wgᵀ) * x Wuᵀ) W2ᵀ), gate
// and up in one product: fc1 stacks both, each split along its rows, so that a rank has the rows of
// `up` that belong to its rows of `gate`.
//
// Communication is that of the two layers. `kept` is the category of memory that a later call
// needs.

#include <cstdint>
#include <string>

#include "layers/column_parallel_linear.h"
#include "layers/context.h"
#include "layers/gpt_config.h"
#include "layers/row_parallel_linear.h"

namespace layers {

class Mlp {
 public:
  // Kept from forward to backward_weights. backward_input frees inner and adds d_inner.
  // If it computes both halves of the first product (Context::joins_halves), x and the gradient of
  // that product are freed, too.
  struct Saved {
    // x is the caller's; inner is the input of GELU, active its output, both [tokens, ffn/tp]. The
    // input of SwiGLU is twice as wide: (gate, up).
    Tensor x, inner, active;
    Tensor all_d_y, d_inner;  // of all rows; without sequence parallelism the caller's d_y
  };

  Mlp(const Context& context, const std::string& name, const GptConfig& config);

  void forward(const Tensor& x, const Tensor& y, Saved& saved, Category kept);
  void backward_input(const Tensor& d_y, const Tensor& d_x, Saved& saved, Category kept);
  void backward_weights(Saved& saved);  // leaves saved empty

  Parameters parameters();

 private:
  Matrix half(const Tensor& inner, int which) const;  // 0: gate, 1: up

  Context context_;
  bool swiglu_;
  std::int64_t width_;  // of this rank: ffn/tp
  ColumnParallelLinear fc1_;
  RowParallelLinear fc2_;
};

}  // namespace layers
