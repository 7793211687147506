#include "layers/embedding.h"

#include <algorithm>

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
  if (!config.rotary())
    positions_ = declare(context, "embedding.position.weight", {sequence_, table.global_shape[1]},
                         context.between_regions());
}

template <class Work>
void Embedding::for_positions(const Tensor& x, const Work& work) const {
  const std::int64_t first = context_.first_row(x.rows());
  for (std::int64_t row = 0, rows = 0; row < x.rows(); row += rows) {
    const std::int64_t position = (first + row) % sequence_;
    rows = std::min(sequence_ - position, x.rows() - row);
    work(x.row_range(row, rows), position);
  }
}

void Embedding::forward(const std::int32_t* tokens, const Tensor& x) {
  SHARDMARK_CHECK(context_.all_rows(x.rows()) % sequence_, ==, 0);
  {
    const Tensor all = inside(context_, x);
    context_.kernels().embedding(tokens, table_.value, first_token(context_, table_), all);
    leave(context_, all, x);
  }
  if (!positions_) return;
  for_positions(x, [&](const Tensor& rows, std::int64_t position) {
    context_.kernels().add(rows, positions_->value.row_range(position, rows.rows()), rows);
  });
}

void Embedding::backward_weights(const std::int32_t* tokens, const Tensor& d_x) {
  {
    const Tensor all = enter(context_, d_x);
    context_.kernels().embedding_backward(tokens, all, first_token(context_, table_),
                                          table_.gradient);
  }
  if (!positions_) return;
  for_positions(d_x, [&](const Tensor& rows, std::int64_t position) {
    context_.kernels().accumulate(rows, positions_->gradient.row_range(position, rows.rows()));
  });
}

Parameters Embedding::parameters() {
  return positions_ ? Parameters{&table_, &*positions_} : Parameters{&table_};
}

}  // namespace layers
