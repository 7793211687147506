#include "layers/output_head.h"

#include "layers/embedding.h"
#include "layers/region.h"
#include "machine/device/gemm.h"

namespace layers {

OutputHead::OutputHead(const Context& context, Parameter& table, const GptConfig& config)
    : context_(context),
      table_(table),
      vocabulary_(table.global_shape[0]),
      norm_(context, "head.norm", config) {
  table_.layer_writes_first_sum = true;
  if (!config.encoder()) return;
  transform_.emplace(context, "head.transform", config);
  bias_ = declare(context, "head.output.bias", {table.global_shape[0]},
                  {.tp = Spread::sharded, .dim = 0}, Role::bias);
}

void OutputHead::forward(const Tensor& x, const std::int32_t* targets, const Tensor& loss,
                         Saved& saved) {
  machine::Kernels& kernels = context_.kernels();
  const std::int64_t tokens = context_.all_rows(x.rows());
  saved.x = x;
  saved.targets = targets;
  saved.norm = context_.tensor(x.shape(), Category::activations);
  norm_.forward(x, saved.norm, saved.statistics, Category::activations);
  saved.features = saved.norm;
  if (transform_) {
    saved.features = context_.tensor(x.shape(), Category::activations);
    transform_->forward(saved.norm, saved.features, saved.transform, Category::activations);
  }

  saved.logits =
      context_.tensor({tokens, table_.global_shape[0] / context_.tp.size()}, Category::activations);
  {
    const Tensor features = enter(context_, saved.features);
    gemm(context_.stream(), matrix(features), matrix(table_.value).transposed(),
         matrix(saved.logits));
  }
  if (bias_) kernels.add_bias(saved.logits, bias_->value, saved.logits);

  saved.max = context_.row_values(tokens, Category::activations);
  saved.sum_exp = context_.row_values(tokens, Category::activations);
  const Tensor target = context_.row_values(tokens, Category::buffers);
  const Tensor token_loss = context_.row_values(tokens, Category::buffers);
  const std::int64_t first = first_token(context_, table_);
  kernels.row_max(saved.logits, first, vocabulary_, saved.max);
  if (context_.tp.size() > 1)
    context_.tp.all_reduce(saved.max, saved.max, {}, machine::Reduction::max);
  kernels.exp_sums(saved.logits, saved.max, targets, first, vocabulary_, saved.sum_exp, target);
  all_reduce_over_tp(context_, target);
  all_reduce_over_tp(context_, saved.sum_exp);
  kernels.cross_entropy(saved.sum_exp, target, targets, token_loss);
  kernels.sum(token_loss, loss);
}

void OutputHead::backward_input(double factor, const Tensor& d_x, Saved& saved, Category kept) {
  context_.kernels().cross_entropy_backward(saved.logits, saved.max, saved.sum_exp, saved.targets,
                                            first_token(context_, table_), vocabulary_, factor,
                                            saved.logits);
  saved.max = saved.sum_exp = Tensor();
  saved.d_features = context_.tensor(saved.features.shape(), kept);
  {
    const Tensor d_features = inside(context_, saved.d_features);
    gemm(context_.stream(), matrix(saved.logits), matrix(table_.value), matrix(d_features));
    leave(context_, d_features, saved.d_features);
  }
  saved.d_norm = saved.d_features;
  if (transform_) {
    saved.d_norm = context_.tensor(saved.norm.shape(), kept);
    transform_->backward_input(saved.d_features, saved.d_norm, saved.transform, kept);
  }
  norm_.backward_input(saved.x, saved.statistics, saved.d_norm, d_x);
}

void OutputHead::backward_weights(Saved& saved) {
  {
    const Tensor features = enter(context_, saved.features);
    if (table_.gradient)  // not frozen
      gemm(context_.stream(), matrix(saved.logits).transposed(), matrix(features),
           matrix(table_.gradient), 1, table_.kept_gradient());
  }
  if (bias_ && bias_->gradient)
    context_.kernels().accumulate_column_sums(saved.logits, bias_->gradient);
  if (transform_) transform_->backward_weights(saved.d_features, saved.transform);
  norm_.backward_weights(saved.x, saved.statistics, saved.d_norm);
  saved = Saved();
}

Parameters OutputHead::parameters() {
  Parameters all = norm_.parameters();
  if (transform_) all = joined({all, transform_->parameters(), {&*bias_}});
  return joined({all, {&table_}});
}

}  // namespace layers
