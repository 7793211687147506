#include "layers/tensor_grids/grid_attention.h"

#include <fmt/format.h>

#include <cmath>

#include "machine/base/reject.h"

namespace layers {

using machine::Category, machine::Matrix, machine::Tensor;

std::string why_not_divided(const TensorGrid& grid, const GridAttentionSizes& sizes) {
  if (sizes.hidden % sizes.heads != 0)
    return fmt::format("hidden-size is {}; expected a multiple of num-attention-heads {}",
                       sizes.hidden, sizes.heads);
  const std::int64_t h = sizes.hidden;
  for (const auto& [layer, of] : {std::pair(PairPlace::first, GridSizes{sizes.tokens(), h, 3 * h}),
                                  {PairPlace::second, GridSizes{sizes.tokens(), h, h}}})
    if (std::string why = why_not_divided(grid, layer, of); !why.empty()) return why;
  const std::int64_t of_rows = grid.mode == TensorParallelMode::one_d ? 1
                               : grid.mode == TensorParallelMode::three_d
                                   ? std::int64_t{grid.rows} * grid.columns
                                   : std::int64_t{grid.rows} * grid.depth;
  if (sizes.sequences % of_rows != 0)
    return fmt::format(
        "micro-batch-size is {}; expected a multiple of {}, so that a rank has whole sequences",
        sizes.sequences, of_rows);
  if (sizes.heads % grid.columns != 0)
    return fmt::format("num-attention-heads is {}; expected a multiple of {}", sizes.heads,
                       grid.columns);
  return {};
}

GridAttention::GridAttention(const GridContext& context, const std::string& name,
                             const GridAttentionSizes& sizes)
    : context_(context),
      sequence_(sizes.sequence),
      head_(sizes.hidden / sizes.heads),
      qkv_(context, name + ".qkv", {sizes.tokens(), sizes.hidden, 3 * sizes.hidden},
           {.layer = PairPlace::first}),
      projection_(context, name + ".projection", {sizes.tokens(), sizes.hidden, sizes.hidden},
                  {.layer = PairPlace::second, .role = collectives::Role::residual}) {
  const std::string why = why_not_divided(context.grid(), sizes);
  if (!why.empty()) machine::reject("{}: {}", name, why);
}

Matrix GridAttention::heads_of(const Tensor& rows, std::int64_t first, std::int64_t apart) const {
  Matrix heads = machine::matrix(rows);
  heads.data = rows.slice(first, {head_}).data();
  heads.rows = sequence_;
  heads.cols = head_;
  heads.batch = {rows.rows() / sequence_, rows.cols() / apart};
  heads.batch_stride = {sequence_ * rows.cols(), apart};
  return heads;
}

machine::AttentionOptions GridAttention::options() const {
  return {.scale = 1 / std::sqrt(static_cast<double>(head_))};
}

void GridAttention::forward(const Tensor& x, const Tensor& y, Saved& saved, Category kept) {
  saved.x = x;
  saved.qkv = context_.block_tensor(qkv_.output(), kept);
  qkv_.forward(x, saved.qkv);
  const std::int64_t width = saved.qkv.cols() / 3;
  saved.attended = context_.tensor({saved.qkv.rows(), width}, kept);
  saved.log_sum_exp =
      Tensor(context_.device, context_.accumulator(), {saved.qkv.rows() * (width / head_)}, kept);
  flash_attention(context_.stream(), of_qkv(saved.qkv, 0), of_qkv(saved.qkv, 1),
                  of_qkv(saved.qkv, 2), options(), heads_of(saved.attended, 0, head_),
                  saved.log_sum_exp);
  projection_.forward(saved.attended, y);
}

void GridAttention::backward_input(const Tensor& d_y, const Tensor& d_x, Saved& saved,
                                   Category kept) {
  Tensor d_qkv = context_.block_tensor(qkv_.output(), kept);
  {
    const Tensor d_attended = context_.tensor(saved.attended.shape(), Category::buffers);
    saved.all_d_y = projection_.backward_input(d_y, d_attended, kept);
    flash_attention_backward(context_.stream(), of_qkv(saved.qkv, 0), of_qkv(saved.qkv, 1),
                             of_qkv(saved.qkv, 2), options(), heads_of(saved.attended, 0, head_),
                             saved.log_sum_exp, heads_of(d_attended, 0, head_), of_qkv(d_qkv, 0),
                             of_qkv(d_qkv, 1), of_qkv(d_qkv, 2));
  }
  saved.qkv = saved.log_sum_exp = Tensor();
  saved.all_d_qkv = qkv_.backward_input(d_qkv, d_x, kept);
}

void GridAttention::backward_weights(Saved& saved) {
  projection_.backward_weights(saved.attended, saved.all_d_y);
  qkv_.backward_weights(saved.x, saved.all_d_qkv);
  saved = Saved();
}

GridParameters GridAttention::parameters() {
  GridParameters all = qkv_.parameters();
  for (GridParameter* parameter : projection_.parameters()) all.push_back(parameter);
  return all;
}

}  // namespace layers
