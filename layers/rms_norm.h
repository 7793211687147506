#pragma once
// RMSNorm over the hidden dimension (Zhang and Sennrich 2019, arXiv:1910.07467), replicated over
// tp:
//
//   y [tokens, hidden] = gain * x / sqrt(mean(x^2) + epsilon)
//
// There is neither mean nor bias. What layer_norm.h says of gradients holds here too: with sequence
// parallelism each rank's is of its own rows, and the placement says so. Communication: none.

#include <string>

#include "layers/context.h"
#include "layers/layer_norm.h"
#include "layers/parameter.h"

namespace layers {

class RmsNorm {
 public:
  // Per row, from forward to backward_weights: tokens accumulators. There is no mean.
  using Statistics = LayerNorm::Statistics;

  RmsNorm(const Context& context, const std::string& name, std::int64_t hidden, double epsilon);

  void forward(const machine::Tensor& x, const machine::Tensor& y, Statistics& statistics,
               machine::Category kept);
  void backward_input(const machine::Tensor& x, const Statistics& statistics,
                      const machine::Tensor& d_y, const machine::Tensor& d_x);
  void backward_weights(const machine::Tensor& x, const Statistics& statistics,
                        const machine::Tensor& d_y);

  void initialize(const Initializer& initializer);
  Parameters parameters() { return {&gain_}; }

 private:
  Context context_;
  double epsilon_;
  collectives::Parameter gain_;
};

}  // namespace layers
