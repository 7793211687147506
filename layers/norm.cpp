#include "layers/norm.h"

namespace layers {

using machine::Category;
using machine::Tensor;

namespace {

using Either = std::variant<LayerNorm, RmsNorm>;

Either make(const Context& context, const std::string& name, const GptConfig& config) {
  if (config.normalization == Normalization::rms_norm)
    return RmsNorm(context, name, config.hidden, config.layer_norm_epsilon);
  return LayerNorm(context, name, config.hidden, config.layer_norm_epsilon);
}

}  // namespace

Norm::Norm(const Context& context, const std::string& name, const GptConfig& config)
    : norm_(make(context, name, config)) {}

void Norm::forward(const Tensor& x, const Tensor& y, Statistics& statistics, Category kept) {
  std::visit([&](auto& norm) { norm.forward(x, y, statistics, kept); }, norm_);
}

void Norm::backward_input(const Tensor& x, const Statistics& statistics, const Tensor& d_y,
                          const Tensor& d_x) {
  std::visit([&](auto& norm) { norm.backward_input(x, statistics, d_y, d_x); }, norm_);
}

void Norm::backward_weights(const Tensor& x, const Statistics& statistics, const Tensor& d_y) {
  std::visit([&](auto& norm) { norm.backward_weights(x, statistics, d_y); }, norm_);
}

void Norm::initialize(const Initializer& initializer) {
  std::visit([&](auto& norm) { norm.initialize(initializer); }, norm_);
}

Parameters Norm::parameters() {
  return std::visit([](auto& norm) { return norm.parameters(); }, norm_);
}

}  // namespace layers
