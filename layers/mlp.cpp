#include "layers/mlp.h"

namespace layers {

using machine::Category;
using machine::Tensor;

Mlp::Mlp(const Context& context, const std::string& name, std::int64_t hidden, std::int64_t ffn)
    : context_(context),
      width_(ffn / context.tp.size()),
      fc1_(context, name + ".fc1", hidden, ffn),
      fc2_(context, name + ".fc2", ffn, hidden) {}

void Mlp::forward(const Tensor& x, const Tensor& y, Saved& saved, Category kept) {
  const machine::Shape shape{context_.all_rows(x.rows()), width_};
  saved.x = x;
  saved.inner = context_.tensor(shape, kept);
  saved.active = context_.tensor(shape, kept);
  fc1_.forward(x, saved.inner);
  context_.kernels().gelu(saved.inner, saved.active);
  fc2_.forward(saved.active, y);
}

void Mlp::backward_input(const Tensor& d_y, const Tensor& d_x, Saved& saved, Category kept) {
  saved.d_inner = context_.tensor(saved.inner.shape(), kept);
  {
    const Tensor d_active = context_.tensor(saved.active.shape(), Category::buffers);
    saved.all_d_y = fc2_.backward_input(d_y, d_active, kept);
    context_.kernels().gelu_backward(saved.inner, d_active, saved.d_inner);
  }
  saved.inner = Tensor();
  fc1_.backward_input(saved.d_inner, d_x);
}

void Mlp::backward_weights(Saved& saved) {
  fc2_.backward_weights(saved.active, saved.all_d_y);
  fc1_.backward_weights(saved.x, saved.d_inner);
  saved = Saved();
}

void Mlp::initialize(const Initializer& initializer) {
  fc1_.initialize(initializer);
  fc2_.initialize(initializer);
}

Parameters Mlp::parameters() {
  return {&fc1_.weight(), &fc1_.bias(), &fc2_.weight(), &fc2_.bias()};
}

}  // namespace layers
