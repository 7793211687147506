#include "layers/prediction_transform.h"

#include "machine/device/gemm.h"

namespace layers {

PredictionTransform::PredictionTransform(const Context& context, const std::string& name,
                                         const GptConfig& config)
    : context_(context),
      weight_(declare(context, name + ".weight", {config.hidden, config.hidden},
                      context.between_regions())),
      bias_(
          declare(context, name + ".bias", {config.hidden}, context.between_regions(), Role::bias)),
      norm_(context, name + ".norm", config) {}

void PredictionTransform::forward(const Tensor& x, const Tensor& y, Saved& saved, Category kept) {
  saved.x = x;
  saved.inner = context_.tensor(x.shape(), kept);
  saved.active = context_.tensor(x.shape(), kept);
  gemm(context_.stream(), matrix(x), matrix(weight_.value).transposed(), matrix(saved.inner));
  context_.kernels().add_bias(saved.inner, bias_.value, saved.inner);
  context_.kernels().gelu(saved.inner, saved.active);
  norm_.forward(saved.active, y, saved.statistics, kept);
}

void PredictionTransform::backward_input(const Tensor& d_y, const Tensor& d_x, Saved& saved,
                                         Category kept) {
  saved.d_inner = context_.tensor(d_y.shape(), kept);
  {
    const Tensor d_active = context_.tensor(d_y.shape(), Category::buffers);
    norm_.backward_input(saved.active, saved.statistics, d_y, d_active);
    context_.kernels().gelu_backward(saved.inner, d_active, saved.d_inner);
  }
  saved.inner = Tensor();
  gemm(context_.stream(), matrix(saved.d_inner), matrix(weight_.value), matrix(d_x));
}

void PredictionTransform::backward_weights(const Tensor& d_y, Saved& saved) {
  if (weight_.gradient)  // not frozen
    gemm(context_.stream(), matrix(saved.d_inner).transposed(), matrix(saved.x),
         matrix(weight_.gradient), 1, 1);
  if (bias_.gradient) context_.kernels().accumulate_column_sums(saved.d_inner, bias_.gradient);
  norm_.backward_weights(saved.active, saved.statistics, d_y);
  saved = Saved();
}

Parameters PredictionTransform::parameters() {
  return joined({{&weight_, &bias_}, norm_.parameters()});
}

}  // namespace layers
