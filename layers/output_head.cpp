#include "layers/output_head.h"

#include "layers/embedding.h"
#include "layers/region.h"
#include "machine/device/gemm.h"

namespace layers {

OutputHead::OutputHead(const Context& context, Parameter& table, const GptConfig& config)
    : context_(context),
      table_(table),
      vocabulary_(table.global_shape[0]),
      norm_(context, "head.norm", config) {}

void OutputHead::forward(const Tensor& x, const std::int32_t* targets, const Tensor& loss,
                         Saved& saved) {
  machine::Kernels& kernels = context_.kernels();
  const std::int64_t tokens = context_.all_rows(x.rows());
  saved.x = x;
  saved.targets = targets;
  saved.norm = context_.tensor(x.shape(), Category::activations);
  norm_.forward(x, saved.norm, saved.statistics, Category::activations);

  saved.logits =
      context_.tensor({tokens, table_.global_shape[0] / context_.tp.size()}, Category::activations);
  {
    const Tensor norm = enter(context_, saved.norm);
    gemm(context_.stream(), matrix(norm), matrix(table_.value).transposed(), matrix(saved.logits));
  }

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
  saved.d_norm = context_.tensor(saved.norm.shape(), kept);
  {
    const Tensor d_norm = inside(context_, saved.d_norm);
    gemm(context_.stream(), matrix(saved.logits), matrix(table_.value), matrix(d_norm));
    leave(context_, d_norm, saved.d_norm);
  }
  norm_.backward_input(saved.x, saved.statistics, saved.d_norm, d_x);
}

void OutputHead::backward_weights(Saved& saved) {
  {
    const Tensor norm = enter(context_, saved.norm);
    gemm(context_.stream(), matrix(saved.logits).transposed(), matrix(norm),
         matrix(table_.gradient), 1, 1);
  }
  norm_.backward_weights(saved.x, saved.statistics, saved.d_norm);
  saved = Saved();
}

Parameters OutputHead::parameters() { return joined({norm_.parameters(), {&table_}}); }

}  // namespace layers
