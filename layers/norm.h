#pragma once
// Normalization over the hidden dimension, replicated over tp:
//
//   LayerNorm  y [tokens, hidden] = gain * (x - mean) / sqrt(variance + epsilon) + bias
//   RMSNorm    y [tokens, hidden] = gain * x / sqrt(mean(x^2) + epsilon)
//
// Each rank of tp has the same x and d_y, so its gradients of gain and bias are complete. With
// sequence parallelism each rank has its own rows and partial gradients, as the placement states.
// There is no communication.
//
// Ba, Kiros and Hinton 2016, arXiv:1607.06450; Zhang and Sennrich 2019, arXiv:1910.07467.

#include <optional>
#include <string>

#include "layers/context.h"
#include "layers/gpt_config.h"
#include "layers/parameter.h"

namespace layers {

class Norm {
 public:
  // One accumulator per row each, kept from forward to backward_weights. RMSNorm has no mean.
  struct Statistics {
    Tensor mean, rstd;  // [tokens]; rstd is the reciprocal standard deviation
  };

  Norm(const Context& context, const std::string& name, Normalization normalization,
       std::int64_t hidden, double epsilon);
  Norm(const Context& context, const std::string& name, const GptConfig& config)
      : Norm(context, name, config.normalization, config.hidden, config.layer_norm_epsilon) {}

  void forward(const Tensor& x, const Tensor& y, Statistics& statistics, Category kept);
  void backward_input(const Tensor& x, const Statistics& statistics, const Tensor& d_y,
                      const Tensor& d_x);
  void backward_weights(const Tensor& x, const Statistics& statistics, const Tensor& d_y);

  Parameters parameters();

 private:
  Context context_;
  double epsilon_;
  Parameter gain_;
  std::optional<Parameter> bias_;  // LayerNorm's
};

}  // namespace layers
