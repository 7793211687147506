#include "layers/models/grids/grid_output_head.h"

#include "layers/models/grids/grid_transformer_block.h"

namespace layers {
namespace {

GridSizes sizes_of(const GptConfig& config, int sequences) {
  return {std::int64_t{sequences} * config.sequence, config.vocabulary, config.hidden};
}

}  // namespace

GridAxis vocabulary_axis(const TensorGrid& grid) {
  return grid.mode == TensorParallelMode::three_d ? GridAxis::depth : GridAxis::row;
}

GridBlock table_block(const GridContext& context, const GptConfig& config) {
  return weight_block(context.grid(), context.rank(), PairPlace::second, sizes_of(config, 1));
}

GridOutputHead::GridOutputHead(const GridContext& context, GridParameter& table,
                               const GptConfig& config, int sequences)
    : context_(context),
      table_(table),
      vocabulary_(config.vocabulary),
      logits_(input_block(context.grid(), context.rank(), PairPlace::second,
                          sizes_of(config, sequences))),
      norm_(context, "head.norm", sizes_of(config, sequences).tokens, config.hidden,
            config.layer_norm_epsilon),
      matmul_(context, PairPlace::second) {}

void GridOutputHead::forward(const Tensor& x, const std::int32_t* targets, const Tensor& loss,
                             Saved& saved) {
  machine::Kernels& kernels = context_.kernels();
  const auto row_values = [&](Category category) {
    return Tensor(context_.device, context_.accumulator(), {logits_.rows}, category);
  };
  saved.x = x;
  saved.targets = targets + logits_.row;
  saved.norm = context_.tensor(x.shape(), Category::activations);
  norm_.forward(x, saved.norm, saved.statistics, Category::activations);
  saved.logits = context_.block_tensor(logits_, Category::activations);
  {
    GridOperands operands{.left = saved.norm, .right = table_.value, .result = saved.logits};
    matmul_.run(GridProduct::abt, operands);
  }
  saved.max = row_values(Category::activations);
  saved.sum_exp = row_values(Category::activations);
  const Tensor target = row_values(Category::buffers), token_loss = row_values(Category::buffers);
  collectives::Communicator* const vocabulary =
      context_.groups.find(vocabulary_axis(context_.grid()));
  kernels.row_max(saved.logits, logits_.col, vocabulary_, saved.max);
  if (vocabulary) vocabulary->all_reduce(saved.max, saved.max, {}, machine::Reduction::max);
  kernels.exp_sums(saved.logits, saved.max, saved.targets, logits_.col, vocabulary_, saved.sum_exp,
                   target);
  if (vocabulary) {
    vocabulary->all_reduce(target);
    vocabulary->all_reduce(saved.sum_exp);
  }
  kernels.cross_entropy(saved.sum_exp, target, saved.targets, token_loss);
  kernels.sum(token_loss, loss);
}

void GridOutputHead::backward_input(double factor, const Tensor& d_x, Saved& saved, Category kept) {
  context_.kernels().cross_entropy_backward(saved.logits, saved.max, saved.sum_exp, saved.targets,
                                            logits_.col, vocabulary_, factor, saved.logits);
  saved.max = saved.sum_exp = Tensor();
  saved.d_norm = context_.tensor(saved.norm.shape(), kept);
  {
    GridOperands operands{.left = saved.logits, .right = table_.value, .result = saved.d_norm};
    matmul_.run(GridProduct::ab, operands);
  }
  norm_.backward_input(saved.x, saved.statistics, saved.d_norm, d_x);
}

void GridOutputHead::backward_weights(Saved& saved) {
  {
    GridOperands operands{
        .left = saved.logits, .right = saved.norm, .result = table_.gradient, .adds = true};
    matmul_.run(GridProduct::atb, operands);
  }
  norm_.backward_weights(saved.x, saved.statistics, saved.d_norm);
  saved = Saved();
}

GridParameters GridOutputHead::parameters() { return held({norm_.parameters(), {&table_}}); }

}  // namespace layers
