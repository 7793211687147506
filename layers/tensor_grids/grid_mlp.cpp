#include "layers/tensor_grids/grid_mlp.h"

namespace layers {

using machine::Category, machine::Tensor;

GridMlp::GridMlp(const GridContext& context, const std::string& name, std::int64_t tokens,
                 std::int64_t hidden, std::int64_t ffn, bool bias)
    : context_(context),
      fc1_(context, name + ".fc1", {tokens, hidden, ffn}, {bias, PairPlace::first}),
      fc2_(context, name + ".fc2", {tokens, ffn, hidden},
           {bias, PairPlace::second, collectives::Role::residual}) {}

void GridMlp::forward(const Tensor& x, const Tensor& y, Saved& saved, Category kept) {
  saved.x = x;
  saved.inner = context_.block_tensor(fc1_.output(), kept);
  saved.active = context_.block_tensor(fc1_.output(), kept);
  fc1_.forward(x, saved.inner);
  context_.kernels().gelu(saved.inner, saved.active);
  fc2_.forward(saved.active, y);
}

void GridMlp::backward_input(const Tensor& d_y, const Tensor& d_x, Saved& saved, Category kept) {
  Tensor d_inner = context_.block_tensor(fc1_.output(), kept);
  {
    const Tensor d_active = context_.block_tensor(fc1_.output(), Category::buffers);
    saved.all_d_y = fc2_.backward_input(d_y, d_active, kept);
    context_.kernels().gelu_backward(saved.inner, d_active, d_inner);
  }
  saved.inner = Tensor();
  saved.all_d_inner = fc1_.backward_input(d_inner, d_x, kept);
}

void GridMlp::backward_weights(Saved& saved) {
  fc2_.backward_weights(saved.active, saved.all_d_y);
  fc1_.backward_weights(saved.x, saved.all_d_inner);
  saved = Saved();
}

GridParameters GridMlp::parameters() {
  GridParameters all = fc1_.parameters();
  for (GridParameter* parameter : fc2_.parameters()) all.push_back(parameter);
  return all;
}

}  // namespace layers
