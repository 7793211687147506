#pragma once
// A linear layer cut along its output (Shoeybi et al. 2019, arXiv:1909.08053, section 3):
//
//   y [tokens, out/tp] = x [tokens, in] Wᵀ + b,   W [out/tp, in], b [out/tp]
//
// Each rank computes whole outputs, so an element-wise non-linearity can follow without any
// communication: GELU(X [A1, A2]) = [GELU(X A1), GELU(X A2)]. Cut along the input it could not, for
// GELU(X1 A1 + X2 A2) needs the sum first.
//
// Communication: none forward; backward_input all-reduces d_x [tokens, in] over tp. With sequence
// parallelism x and d_x are of this rank's own rows: forward gathers x, backward_input
// reduce-scatters d_x, and backward_weights gathers x again, so that only 1/tp of it is kept.
// backward_weights adds to the gradients (float under bfloat16 and half).

#include <cstdint>
#include <string>

#include "layers/context.h"
#include "layers/parameter.h"

namespace layers {

class ColumnParallelLinear {
 public:
  // Throws std::invalid_argument naming the parameter when tp does not divide out.
  ColumnParallelLinear(const Context& context, const std::string& name, std::int64_t in,
                       std::int64_t out);

  void forward(const machine::Tensor& x, const machine::Tensor& y);
  void backward_input(const machine::Tensor& d_y, const machine::Tensor& d_x);
  void backward_weights(const machine::Tensor& x, const machine::Tensor& d_y);

  void initialize(const Initializer& initializer);
  Parameters parameters() { return {&weight_, &bias_}; }
  collectives::Parameter& weight() { return weight_; }
  collectives::Parameter& bias() { return bias_; }

 private:
  Context context_;
  collectives::Parameter weight_, bias_;
};

}  // namespace layers
