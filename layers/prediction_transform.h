#pragma once
// The hidden layer of an encoder's head (Devlin et al. 2019, arXiv:1810.04805; BertLMHead of
// Megatron-LM), replicated over tp:
//
//   y [tokens, hidden] = norm(gelu(x Wᵀ + b)),   W [hidden, hidden]
//
// The biases are there also with disable_bias_linear, as in Megatron-LM. Each rank computes its own
// rows, so gradients are complete, or with sequence parallelism partial, as the placement states.
// There is no communication.

#include <string>

#include "layers/context.h"
#include "layers/gpt_config.h"
#include "layers/norm.h"
#include "layers/parameter.h"

namespace layers {

class PredictionTransform {
 public:
  // Kept from forward to backward_weights. backward_input frees inner and adds d_inner.
  struct Saved {
    Tensor x, inner, active;  // x is the caller's; inner and active: before and after GELU
    Norm::Statistics statistics;
    Tensor d_inner;
  };

  PredictionTransform(const Context& context, const std::string& name, const GptConfig& config);

  void forward(const Tensor& x, const Tensor& y, Saved& saved, Category kept);
  void backward_input(const Tensor& d_y, const Tensor& d_x, Saved& saved, Category kept);
  void backward_weights(const Tensor& d_y, Saved& saved);  // leaves saved empty

  Parameters parameters();

 private:
  Context context_;
  Parameter weight_, bias_;
  Norm norm_;
};

}  // namespace layers
