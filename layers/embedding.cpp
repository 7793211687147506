#include "layers/embedding.h"

#include "layers/region.h"
#include "machine/device/error.h"

namespace layers {

using collectives::Parameter;
using collectives::Spread;
using machine::Tensor;

Parameter declare_token_table(const Context& context, std::int64_t vocabulary, std::int64_t hidden,
                              bool tied_over_pp) {
  return declare(context, "embedding.token.weight", {vocabulary, hidden},
                 {.tp = Spread::sharded, .dim = 0, .tied_over_pp = tied_over_pp});
}

std::int64_t first_token(const Context& context, const Parameter& table) {
  return context.tp.rank() * (table.global_shape[0] / context.tp.size());
}

Embedding::Embedding(const Context& context, Parameter& table, std::int64_t sequence)
    : context_(context),
      sequence_(sequence),
      table_(table),
      positions_(
          declare(context, "embedding.position.weight", {sequence, table.global_shape[1]}, {})) {}

void Embedding::forward(const std::int32_t* tokens, const Tensor& x) {
  SHARDMARK_CHECK(x.rows() % sequence_, ==, 0);
  context_.kernels().embedding(tokens, table_.value, first_token(context_, table_), x);
  ReduceFrom::forward(context_.tp, x);
  for (std::int64_t row = 0; row < x.rows(); row += sequence_) {
    const Tensor rows = x.row_range(row, sequence_);
    context_.kernels().add(rows, positions_.value, rows);
  }
}

void Embedding::backward_weights(const std::int32_t* tokens, const Tensor& d_x) {
  ReduceFrom::backward(context_.tp, d_x);
  context_.kernels().embedding_backward(tokens, d_x, first_token(context_, table_),
                                        table_.gradient);
  for (std::int64_t row = 0; row < d_x.rows(); row += sequence_)
    context_.kernels().accumulate(d_x.row_range(row, sequence_), positions_.gradient);
}

void Embedding::initialize(const Initializer& initializer) {
  initializer.normal(context_, table_, 0, initializer.weight_stddev);
  initializer.normal(context_, positions_, 0, initializer.weight_stddev);
}

}  // namespace layers
