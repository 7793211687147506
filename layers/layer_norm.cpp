#include "layers/layer_norm.h"

namespace layers {

using machine::Category;
using machine::Tensor;

LayerNorm::LayerNorm(const Context& context, const std::string& name, std::int64_t hidden,
                     double epsilon)
    : context_(context),
      epsilon_(epsilon),
      gain_(declare(context, name + ".gain", {hidden}, context.between_regions())),
      bias_(declare(context, name + ".bias", {hidden}, context.between_regions())) {}

void LayerNorm::forward(const Tensor& x, const Tensor& y, Statistics& statistics, Category kept) {
  statistics.mean = context_.row_values(x.rows(), kept);
  statistics.rstd = context_.row_values(x.rows(), kept);
  context_.kernels().layer_norm(x, gain_.value, bias_.value, epsilon_, y, statistics.mean,
                                statistics.rstd);
}

void LayerNorm::backward_input(const Tensor& x, const Statistics& statistics, const Tensor& d_y,
                               const Tensor& d_x) {
  context_.kernels().layer_norm_backward_input(x, gain_.value, statistics.mean, statistics.rstd,
                                               d_y, d_x);
}

void LayerNorm::backward_weights(const Tensor& x, const Statistics& statistics, const Tensor& d_y) {
  context_.kernels().layer_norm_backward_weights(x, statistics.mean, statistics.rstd, d_y,
                                                 gain_.gradient, bias_.gradient);
}

void LayerNorm::initialize(const Initializer& initializer) {
  initializer.normal(context_, gain_, 1, initializer.gain_stddev);
  initializer.normal(context_, bias_, 0, initializer.bias_stddev);
}

}  // namespace layers
