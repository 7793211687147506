#include "layers/models/grids/grid_transformer_block.h"

namespace layers {

GridParameters held(std::initializer_list<GridParameters> parts) {
  GridParameters all;
  for (const GridParameters& part : parts)
    for (GridParameter* const parameter : part)
      if (parameter->held()) all.push_back(parameter);
  return all;
}

GridTransformerBlock::GridTransformerBlock(const GridContext& context, const std::string& name,
                                           const GptConfig& config, int sequences)
    : context_(context),
      norm1_(context, name + ".norm1", std::int64_t{sequences} * config.sequence, config.hidden,
             config.layer_norm_epsilon),
      attention_(context, name + ".attention",
                 {sequences, config.sequence, config.hidden, config.heads}),
      norm2_(context, name + ".norm2", std::int64_t{sequences} * config.sequence, config.hidden,
             config.layer_norm_epsilon),
      mlp_(context, name + ".mlp", std::int64_t{sequences} * config.sequence, config.hidden,
           config.ffn()) {}

void GridTransformerBlock::forward(const Tensor& x, const Tensor& y, Saved& saved, Category kept) {
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

void GridTransformerBlock::backward_input(const Tensor& d_y, const Tensor& d_x, Saved& saved,
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

void GridTransformerBlock::backward_weights(Saved& saved) {
  mlp_.backward_weights(saved.mlp);
  norm2_.backward_weights(saved.residual, saved.statistics2, saved.d_norm2);
  attention_.backward_weights(saved.attention);
  norm1_.backward_weights(saved.x, saved.statistics1, saved.d_norm1);
  saved = Saved();
}

GridParameters GridTransformerBlock::parameters() {
  return held(
      {norm1_.parameters(), attention_.parameters(), norm2_.parameters(), mlp_.parameters()});
}

}  // namespace layers
