#pragma once
// A linear layer cut along its input (Shoeybi et al. 2019, arXiv:1909.08053, section 3): takes what
// a column-parallel layer leaves on each rank.
//
//   y [tokens, out] = all_reduce(x [tokens, in/tp] Wᵀ) + b,   W [out, in/tp], b [out]
//
// The bias is replicated and added once, after the reduction: added on each rank before, it would
// count tp times. Every rank computes the same gradient of it from the same d_y.
//
// Communication: forward all-reduces y [tokens, out] over tp; backward none. backward_weights adds
// to the gradients (float under bfloat16 and half).

#include <cstdint>
#include <string>

#include "layers/context.h"
#include "layers/parameter.h"

namespace layers {

class RowParallelLinear {
 public:
  // Throws std::invalid_argument naming the parameter when tp does not divide in.
  RowParallelLinear(const Context& context, const std::string& name, std::int64_t in,
                    std::int64_t out);

  void forward(const machine::Tensor& x, const machine::Tensor& y);
  void backward_input(const machine::Tensor& d_y, const machine::Tensor& d_x);
  void backward_weights(const machine::Tensor& x, const machine::Tensor& d_y);

  void initialize(const Initializer& initializer);  // weights of residual_stddev
  Parameters parameters() { return {&weight_, &bias_}; }
  collectives::Parameter& weight() { return weight_; }
  collectives::Parameter& bias() { return bias_; }

 private:
  Context context_;
  collectives::Parameter weight_, bias_;
};

}  // namespace layers
