#include "layers/transformer_block.h"

namespace layers {

using machine::Category;
using machine::Tensor;

TransformerBlock::TransformerBlock(const Context& context, const std::string& name,
                                   std::int64_t hidden, std::int64_t heads, std::int64_t ffn,
                                   std::int64_t sequence, double epsilon)
    : context_(context),
      norm1_(context, name + ".norm1", hidden, epsilon),
      attention_(context, name + ".attention", hidden, heads, sequence),
      norm2_(context, name + ".norm2", hidden, epsilon),
      mlp_(context, name + ".mlp", hidden, ffn) {}

void TransformerBlock::forward(const Tensor& x, const Tensor& y, Saved& saved, Category kept) {
  saved.x = x;
  const Tensor norm1 = context_.tensor(x.shape(), kept);
  norm1_.forward(x, norm1, saved.statistics1, kept);
  saved.residual = context_.tensor(x.shape(), kept);
  attention_.forward(norm1, saved.residual, saved.attention, kept);
  context_.kernels().add(saved.residual, x, saved.residual);

  const Tensor norm2 = context_.tensor(x.shape(), kept);
  norm2_.forward(saved.residual, norm2, saved.statistics2, kept);
  mlp_.forward(norm2, y, saved.mlp, kept);
  context_.kernels().add(y, saved.residual, y);
}

void TransformerBlock::backward_input(const Tensor& d_y, const Tensor& d_x, Saved& saved,
                                      Category kept) {
  saved.d_norm2 = context_.tensor(d_y.shape(), kept);
  mlp_.backward_input(d_y, saved.d_norm2, saved.mlp, kept);
  const Tensor d_residual = context_.tensor(d_y.shape(), kept);
  norm2_.backward_input(saved.residual, saved.statistics2, saved.d_norm2, d_residual);
  context_.kernels().add(d_residual, d_y, d_residual);

  saved.d_norm1 = context_.tensor(d_y.shape(), kept);
  attention_.backward_input(d_residual, saved.d_norm1, saved.attention, kept);
  norm1_.backward_input(saved.x, saved.statistics1, saved.d_norm1, d_x);
  context_.kernels().add(d_x, d_residual, d_x);
}

void TransformerBlock::backward_weights(Saved& saved) {
  mlp_.backward_weights(saved.mlp);
  norm2_.backward_weights(saved.residual, saved.statistics2, saved.d_norm2);
  attention_.backward_weights(saved.attention);
  norm1_.backward_weights(saved.x, saved.statistics1, saved.d_norm1);
  saved = Saved();
}

void TransformerBlock::initialize(const Initializer& initializer) {
  norm1_.initialize(initializer);
  attention_.initialize(initializer);
  norm2_.initialize(initializer);
  mlp_.initialize(initializer);
}

Parameters TransformerBlock::parameters() {
  Parameters all = norm1_.parameters();
  for (const Parameters& part : {attention_.parameters(), norm2_.parameters(), mlp_.parameters()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace layers
