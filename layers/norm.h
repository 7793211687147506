#pragma once
// The norm that a model has, LayerNorm or RMSNorm: config.normalization says which.

#include <string>
#include <variant>

#include "layers/gpt_config.h"
#include "layers/layer_norm.h"
#include "layers/rms_norm.h"

namespace layers {

class Norm {
 public:
  using Statistics = LayerNorm::Statistics;

  Norm(const Context& context, const std::string& name, const GptConfig& config);

  void forward(const machine::Tensor& x, const machine::Tensor& y, Statistics& statistics,
               machine::Category kept);
  void backward_input(const machine::Tensor& x, const Statistics& statistics,
                      const machine::Tensor& d_y, const machine::Tensor& d_x);
  void backward_weights(const machine::Tensor& x, const Statistics& statistics,
                        const machine::Tensor& d_y);

  void initialize(const Initializer& initializer);
  Parameters parameters();

 private:
  std::variant<LayerNorm, RmsNorm> norm_;
};

}  // namespace layers
