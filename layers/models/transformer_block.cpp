#include "layers/models/transformer_block.h"

namespace layers {

TransformerBlock::TransformerBlock(const Context& context, const std::string& name,
                                   const GptConfig& config,
                                   const std::optional<MoeCommunicators>& experts)
    : context_(context),
      norm1_(context, name + ".norm1", config),
      attention_(context, name + ".attention", config),
      attention_dropout_{context, name + ".attention.dropout", config.hidden_dropout},
      norm2_(context, name + ".norm2", config),
      mlp_dropout_{context, name + ".mlp.dropout", config.hidden_dropout} {
  if (config.has_experts())
    moe_.emplace(context,
                 experts.value_or(MoeCommunicators{context.tp, context.tp.size(),
                                                   context.tp.size() > 1 ? &context.tp : nullptr}),
                 name + ".moe", config.mixture());
  else
    mlp_.emplace(context, name + ".mlp", config);
  if (config.encoder_decoder())
    cross_.emplace(Cross{Norm(context, name + ".cross_norm", config),
                         CrossAttention(context, name + ".cross", config),
                         {context, name + ".cross.dropout", config.hidden_dropout}});
}

void TransformerBlock::forward(const Tensor& x, const Tensor& y, Saved& saved, Category kept,
                               const BlockInputs& inputs) {
  const Draw& draw = inputs.draw;
  saved.x = x;
  saved.draw = draw;
  const Tensor norm1 = context_.tensor(x.shape(), kept);
  norm1_.forward(x, norm1, saved.statistics1, kept);
  saved.residual = context_.tensor(x.shape(), kept);
  attention_.forward(norm1, saved.residual, saved.attention, kept, draw, inputs.lengths,
                     inputs.bias);
  attention_dropout_.apply(draw, saved.residual, saved.residual);
  context_.kernels().add(saved.residual, x, saved.residual);
  Tensor before_mlp = saved.residual;
  if (cross_) {
    const Tensor norm = context_.tensor(x.shape(), kept);
    cross_->norm.forward(saved.residual, norm, saved.cross_statistics, kept);
    before_mlp = saved.crossed = context_.tensor(x.shape(), kept);
    cross_->attention.forward(norm, inputs.encoded, saved.crossed, saved.cross, kept, draw,
                              inputs.encoded_lengths);
    cross_->dropout.apply(draw, saved.crossed, saved.crossed);
    context_.kernels().add(saved.crossed, saved.residual, saved.crossed);
  }

  const Tensor norm2 = context_.tensor(x.shape(), kept);
  norm2_.forward(before_mlp, norm2, saved.statistics2, kept);
  if (moe_)
    moe_->forward(norm2, y, saved.moe, kept, inputs.routing);
  else
    mlp_->forward(norm2, y, saved.mlp, kept);
  mlp_dropout_.apply(draw, y, y);
  context_.kernels().add(y, before_mlp, y);
}

// d_y is also the gradient of the residual path, so dropout is not in place.
Tensor TransformerBlock::dropped(const Dropout& dropout, const Tensor& d_y, const Draw& draw,
                                 Category kept) const {
  if (!dropout.drops()) return d_y;
  const Tensor result = context_.tensor(d_y.shape(), kept);
  dropout.apply(draw, d_y, result);
  return result;
}

void TransformerBlock::backward_input(const Tensor& d_y, const Tensor& d_x, Saved& saved,
                                      Category kept, const BlockGradients& also,
                                      double loss_scale) {
  saved.d_norm2 = context_.tensor(d_y.shape(), kept);
  if (moe_)
    moe_->backward_input(dropped(mlp_dropout_, d_y, saved.draw, kept), saved.d_norm2, saved.moe,
                         loss_scale * static_cast<double>(moe_->loss_tokens(d_y.rows())), kept);
  else
    mlp_->backward_input(dropped(mlp_dropout_, d_y, saved.draw, kept), saved.d_norm2, saved.mlp,
                         kept);
  Tensor d_residual = context_.tensor(d_y.shape(), kept);
  norm2_.backward_input(cross_ ? saved.crossed : saved.residual, saved.statistics2, saved.d_norm2,
                        d_residual);
  context_.kernels().add(d_residual, d_y, d_residual);
  if (cross_) {
    const Tensor d_crossed = d_residual;
    saved.d_cross_norm = context_.tensor(d_y.shape(), kept);
    cross_->attention.backward_input(dropped(cross_->dropout, d_crossed, saved.draw, kept),
                                     saved.d_cross_norm, also.encoded, saved.cross, kept);
    d_residual = context_.tensor(d_y.shape(), kept);
    cross_->norm.backward_input(saved.residual, saved.cross_statistics, saved.d_cross_norm,
                                d_residual);
    context_.kernels().add(d_residual, d_crossed, d_residual);
  }

  saved.d_norm1 = context_.tensor(d_y.shape(), kept);
  attention_.backward_input(dropped(attention_dropout_, d_residual, saved.draw, kept),
                            saved.d_norm1, saved.attention, kept, also.bias);
  norm1_.backward_input(saved.x, saved.statistics1, saved.d_norm1, d_x);
  context_.kernels().add(d_x, d_residual, d_x);
}

void TransformerBlock::backward_weights(Saved& saved) {
  if (moe_)
    moe_->backward_weights(saved.moe);
  else
    mlp_->backward_weights(saved.mlp);
  norm2_.backward_weights(cross_ ? saved.crossed : saved.residual, saved.statistics2,
                          saved.d_norm2);
  if (cross_) {
    cross_->attention.backward_weights(saved.cross);
    cross_->norm.backward_weights(saved.residual, saved.cross_statistics, saved.d_cross_norm);
  }
  attention_.backward_weights(saved.attention);
  norm1_.backward_weights(saved.x, saved.statistics1, saved.d_norm1);
  saved = Saved();
}

Parameters TransformerBlock::parameters() {
  Parameters cross;
  if (cross_) cross = joined({cross_->norm.parameters(), cross_->attention.parameters()});
  return joined({norm1_.parameters(), attention_.parameters(), cross, norm2_.parameters(),
                 moe_ ? moe_->parameters() : mlp_->parameters()});
}

}  // namespace layers
