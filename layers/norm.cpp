#include "layers/norm.h"

namespace layers {

Norm::Norm(const Context& context, const std::string& name, Normalization normalization,
           std::int64_t hidden, double epsilon)
    : context_(context),
      epsilon_(epsilon),
      gain_(declare(context, name + ".gain", {hidden}, context.between_regions(), Role::gain)) {
  if (normalization == Normalization::layer_norm)
    bias_ = declare(context, name + ".bias", {hidden}, context.between_regions(), Role::bias);
}

void Norm::forward(const Tensor& x, const Tensor& y, Statistics& statistics, Category kept) {
  if (bias_) statistics.mean = context_.row_values(x.rows(), kept);
  statistics.rstd = context_.row_values(x.rows(), kept);
  if (bias_)
    context_.kernels().layer_norm(x, gain_.value, bias_->value, epsilon_, y, statistics.mean,
                                  statistics.rstd);
  else
    context_.kernels().rms_norm(x, gain_.value, epsilon_, y, statistics.rstd);
}

void Norm::backward_input(const Tensor& x, const Statistics& statistics, const Tensor& d_y,
                          const Tensor& d_x) {
  if (bias_)
    context_.kernels().layer_norm_backward_input(x, gain_.value, statistics.mean, statistics.rstd,
                                                 d_y, d_x);
  else
    context_.kernels().rms_norm_backward_input(x, gain_.value, statistics.rstd, d_y, d_x);
}

void Norm::backward_weights(const Tensor& x, const Statistics& statistics, const Tensor& d_y) {
  if (!gain_.gradient) return;  // frozen, with its bias
  if (bias_)
    context_.kernels().layer_norm_backward_weights(x, statistics.mean, statistics.rstd, d_y,
                                                   gain_.gradient, bias_->gradient);
  else
    context_.kernels().rms_norm_backward_weights(x, statistics.rstd, d_y, gain_.gradient);
}

Parameters Norm::parameters() { return bias_ ? Parameters{&gain_, &*bias_} : Parameters{&gain_}; }

}  // namespace layers
