#include "layers/embedding.h"

#include <algorithm>

#include "layers/own_rows.h"
#include "layers/region.h"
#include "machine/base/error.h"

namespace layers {

Parameter declare_token_table(const Context& context, std::int64_t vocabulary, std::int64_t hidden,
                              bool tied_over_pp) {
  return declare(context, "embedding.token.weight", {vocabulary, hidden},
                 {.tp = Spread::sharded, .dim = 0, .tied_over_pp = tied_over_pp});
}

Parameter declare_output_weight(const Context& context, std::int64_t vocabulary,
                                std::int64_t hidden) {
  return declare(context, "head.output.weight", {vocabulary, hidden},
                 {.tp = Spread::sharded, .dim = 0});
}

std::int64_t first_token(const Context& context, const Parameter& table) {
  return context.tp.rank() * (table.global_shape[0] / context.tp.size());
}

Embedding::Embedding(const Context& context, Parameter& table, const GptConfig& config)
    : context_(context), sequence_(config.sequence), table_(table) {
  if (config.learned_positions())
    positions_ = declare(context, "embedding.position.weight", {sequence_, table.global_shape[1]},
                         context.between_regions());
  if (config.encoder()) {
    SHARDMARK_CHECK(context.cp.splits(), ==, false);
    types_ = declare(context, "embedding.type.weight", {2, table.global_shape[1]},
                     context.between_regions());
  }
}

Tensor Embedding::spread_rows(const Tensor& x, Dtype dtype) const {
  if (context_.cp.segments(sequence_).front().stride == 1) return {};
  return {context_.device,
          dtype,
          {std::min(x.rows(), context_.cp.rows(sequence_)), x.cols()},
          Category::buffers};
}

void Embedding::forward(const std::int32_t* tokens, const Tensor& x, const std::int32_t* types) {
  SHARDMARK_CHECK(context_.all_rows(x.rows()) % context_.cp.rows(sequence_), ==, 0);
  {
    const Tensor all = inside(context_, x);
    context_.kernels().embedding(tokens, table_.value, first_token(context_, table_), all);
    leave(context_, all, x);
  }
  if (types_) {
    SHARDMARK_CHECK(types != nullptr, ==, true);
    const Tensor added = context_.tensor(x.shape(), Category::buffers);
    context_.kernels().embedding(types + context_.first_row(x.rows()), types_->value, 0, added);
    context_.kernels().add(x, added, x);
  }
  if (!positions_) return;
  const Tensor& value = positions_->value;
  const Tensor spread = spread_rows(x, value.dtype());
  for (const RowRun& run : own_runs(context_, sequence_, x.rows())) {
    const Tensor rows = x.row_range(run.row, run.count);
    Tensor added;
    if (spread) {
      added = spread.row_range(0, run.count);
      const std::size_t bytes = value.row_range(0, 1).bytes();
      context_.stream().copy_rows(added.data(), bytes, value.row_range(run.position, 1).data(),
                                  static_cast<std::size_t>(run.step) * bytes, bytes, run.count);
    } else {
      added = value.row_range(run.position, run.count);
    }
    context_.kernels().add(rows, added, rows);
  }
}

void Embedding::backward_weights(const std::int32_t* tokens, const Tensor& d_x,
                                 const std::int32_t* types) {
  {
    const Tensor all = enter(context_, d_x);
    if (table_.gradient) {  // not frozen
      table_.clear_stale_gradient(context_.kernels());
      context_.kernels().embedding_backward(tokens, all, first_token(context_, table_),
                                            table_.gradient);
    }
  }
  if (types_ && types_->gradient)
    context_.kernels().embedding_backward(types + context_.first_row(d_x.rows()), d_x, 0,
                                          types_->gradient);
  if (!positions_ || !positions_->gradient) return;
  const Tensor& gradient = positions_->gradient;
  const Tensor spread = spread_rows(d_x, gradient.dtype());
  for (const RowRun& run : own_runs(context_, sequence_, d_x.rows())) {
    const Tensor rows = d_x.row_range(run.row, run.count);
    if (!spread) {
      context_.kernels().accumulate(rows, gradient.row_range(run.position, run.count));
      continue;
    }
    const Tensor sums = spread.row_range(0, run.count);
    const std::size_t bytes = gradient.row_range(0, 1).bytes(),
                      apart = static_cast<std::size_t>(run.step) * bytes;
    void* const first = gradient.row_range(run.position, 1).data();
    context_.stream().copy_rows(sums.data(), bytes, first, apart, bytes, run.count);
    context_.kernels().accumulate(rows, sums);
    context_.stream().copy_rows(first, apart, sums.data(), bytes, bytes, run.count);
  }
}

Parameters Embedding::parameters() {
  Parameters all{&table_};
  if (positions_) all.push_back(&*positions_);
  if (types_) all.push_back(&*types_);
  return all;
}

}  // namespace layers
