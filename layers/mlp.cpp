#include "layers/mlp.h"

namespace layers {

Mlp::Mlp(const Context& context, const std::string& name, const GptConfig& config)
    : context_(context),
      swiglu_(config.swiglu),
      width_(config.ffn() / context.tp.size()),
      fc1_(context, name + ".fc1", config.hidden, config.ffn(),
           {.bias = !config.disable_bias_linear, .stacked = config.swiglu ? 2 : 1}),
      fc2_(context, name + ".fc2", config.ffn(), config.hidden,
           {.bias = !config.disable_bias_linear}) {}

Matrix Mlp::half(const Tensor& inner, int which) const {
  Matrix columns = machine::matrix(inner);
  columns.cols = width_;
  columns.data = inner.slice(which * width_, {width_}).data();
  return columns;
}

void Mlp::forward(const Tensor& x, const Tensor& y, Saved& saved, Category kept) {
  const std::int64_t tokens = context_.all_rows(x.rows());
  saved.x = x;
  saved.inner = context_.tensor({tokens, (swiglu_ ? 2 : 1) * width_}, kept);
  saved.active = context_.tensor({tokens, width_}, kept);
  fc1_.forward(x, saved.inner, swiglu_ ? Tensor() : saved.active);
  if (swiglu_)
    context_.kernels().swiglu(half(saved.inner, 0), half(saved.inner, 1), matrix(saved.active));
  fc2_.forward(saved.active, y);
}

void Mlp::backward_input(const Tensor& d_y, const Tensor& d_x, Saved& saved, Category kept) {
  saved.d_inner = context_.tensor(saved.inner.shape(), kept);
  {
    const Tensor d_active = context_.tensor(saved.active.shape(), Category::buffers);
    saved.all_d_y = fc2_.backward_input(d_y, d_active, kept);
    if (swiglu_)
      context_.kernels().swiglu_backward(half(saved.inner, 0), half(saved.inner, 1),
                                         matrix(d_active), half(saved.d_inner, 0),
                                         half(saved.d_inner, 1));
    else
      context_.kernels().gelu_backward(saved.inner, d_active, saved.d_inner);
  }
  saved.inner = Tensor();
  if (!context_.joins_halves(kept)) return fc1_.backward_input(saved.d_inner, d_x, kept);
  fc1_.backward(saved.x, saved.d_inner, d_x);
  saved.x = saved.d_inner = Tensor();
}

void Mlp::backward_weights(Saved& saved) {
  fc2_.backward_weights(saved.active, saved.all_d_y);
  if (saved.x) fc1_.backward_weights(saved.x, saved.d_inner);
  saved = Saved();
}

Parameters Mlp::parameters() { return joined({fc1_.parameters(), fc2_.parameters()}); }

}  // namespace layers
