#include "layers/rms_norm.h"

namespace layers {

using machine::Category;
using machine::Tensor;

RmsNorm::RmsNorm(const Context& context, const std::string& name, std::int64_t hidden,
                 double epsilon)
    : context_(context),
      epsilon_(epsilon),
      gain_(declare(context, name + ".gain", {hidden}, context.between_regions())) {}

void RmsNorm::forward(const Tensor& x, const Tensor& y, Statistics& statistics, Category kept) {
  statistics.rstd = context_.row_values(x.rows(), kept);
  context_.kernels().rms_norm(x, gain_.value, epsilon_, y, statistics.rstd);
}

void RmsNorm::backward_input(const Tensor& x, const Statistics& statistics, const Tensor& d_y,
                             const Tensor& d_x) {
  context_.kernels().rms_norm_backward_input(x, gain_.value, statistics.rstd, d_y, d_x);
}

void RmsNorm::backward_weights(const Tensor& x, const Statistics& statistics, const Tensor& d_y) {
  context_.kernels().rms_norm_backward_weights(x, statistics.rstd, d_y, gain_.gradient);
}

void RmsNorm::initialize(const Initializer& initializer) {
  initializer.normal(context_, gain_, 1, initializer.gain_stddev);
}

}  // namespace layers
