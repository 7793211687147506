#pragma once
// LayerNorm over the hidden dimension, replicated over tp:
//
//   y [tokens, hidden] = gain * (x - mean) / sqrt(variance + epsilon) + bias
//
// Every rank of tp sees the same x and d_y, so gradients of gain and bias are whole on each of them
// and need no reduction. With sequence parallelism each sees its own rows, and the gradients are
// sums over these: the placement says so. Communication: none.

#include <string>

#include "layers/context.h"
#include "layers/parameter.h"

namespace layers {

class LayerNorm {
 public:
  // Per row, from forward to backward_weights: 2 * tokens accumulators.
  struct Statistics {
    machine::Tensor mean, rstd;  // [tokens]; rstd is the reciprocal standard deviation
  };

  LayerNorm(const Context& context, const std::string& name, std::int64_t hidden, double epsilon);

  void forward(const machine::Tensor& x, const machine::Tensor& y, Statistics& statistics,
               machine::Category kept);
  void backward_input(const machine::Tensor& x, const Statistics& statistics,
                      const machine::Tensor& d_y, const machine::Tensor& d_x);
  void backward_weights(const machine::Tensor& x, const Statistics& statistics,
                        const machine::Tensor& d_y);

  void initialize(const Initializer& initializer);
  Parameters parameters() { return {&gain_, &bias_}; }

 private:
  Context context_;
  double epsilon_;
  collectives::Parameter gain_, bias_;
};

}  // namespace layers
