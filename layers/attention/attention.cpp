#include "layers/attention/attention.h"

#include <cmath>

#include "machine/base/error.h"
#include "machine/world/step_clock.h"

namespace layers {

Attention::Attention(const Context& context, const std::string& name, const GptConfig& config)
    : context_(context),
      heads_(config.heads / context.tp.size()),
      groups_(config.query_groups() / context.tp.size()),
      head_(config.head()),
      sequence_(config.sequence),
      group_heads_(config.heads / config.query_groups()),
      rotary_(config.rotary()),
      rotary_base_(config.rotary_base),
      scale_(1 / std::sqrt(static_cast<double>(head_))),
      dropout_(config.attention_dropout),
      dropout_name_(name + ".probabilities.dropout"),
      qkv_(context, name + ".qkv", config.hidden, config.qkv(),
           {.bias = !config.disable_bias_linear}),
      projection_(context, name + ".projection", config.hidden, config.hidden,
                  {.bias = !config.disable_bias_linear}) {
  SHARDMARK_CHECK(config.query_groups() % context.tp.size(), ==, 0);
  SHARDMARK_CHECK(config.heads % config.query_groups(), ==, 0);
  SHARDMARK_CHECK(config.hidden % config.heads, ==, 0);
}

Matrix Attention::heads_of(const Tensor& tensor, std::int64_t first, std::int64_t count,
                           std::int64_t apart) const {
  Matrix heads = machine::matrix(tensor);
  const std::int64_t width = tensor.cols();
  heads.data = tensor.slice(first, {head_}).data();
  heads.rows = sequence_;
  heads.cols = head_;
  heads.batch = {tensor.rows() / sequence_, count};
  heads.batch_stride = {sequence_ * width, apart};
  return heads;
}

Matrix Attention::of_groups(const Tensor& qkv, std::int64_t j) const {
  return heads_of(qkv, j * head_, groups_, (group_heads_ + 2) * head_);
}

Matrix Attention::of_context(const Tensor& context, std::int64_t j) const {
  return heads_of(context, j * head_, groups_, group_heads_ * head_);
}

// Squares are stored by j, sequence, group.
Matrix Attention::of_scores(const Tensor& scores, std::int64_t j) const {
  Matrix square = machine::matrix(scores);
  const std::int64_t squares = scores.shape()[0] / group_heads_, size = sequence_ * sequence_;
  square.data = scores.slice(j * squares * size, {size}).data();
  square.rows = square.cols = square.row_stride = sequence_;
  square.batch = {squares / groups_, groups_};
  square.batch_stride = {groups_ * size, size};
  return square;
}

Attention::Block Attention::block_of(const Tensor& qkv, std::int64_t block) const {
  const std::int64_t r = group_heads_;
  if (r == 1) return {of_groups(qkv, 0), of_groups(qkv, 1), of_groups(qkv, 2)};
  const std::int64_t first = block * (r + 2) * head_;
  return {heads_of(qkv, first, r, head_), heads_of(qkv, first + r * head_, 1, head_),
          heads_of(qkv, first + (r + 1) * head_, 1, head_)};
}

Matrix Attention::block_of_context(const Tensor& context, std::int64_t block) const {
  return group_heads_ == 1 ? of_context(context, 0)
                           : heads_of(context, block * group_heads_ * head_, group_heads_, head_);
}

Tensor Attention::block_of_rows(const Tensor& log_sum_exp, std::int64_t block) const {
  const std::int64_t rows = log_sum_exp.size() / blocks();
  return log_sum_exp.slice(block * rows, {rows});
}

Tensor Attention::make_scores(std::int64_t tokens, Category category) const {
  return context_.tensor({tokens / sequence_ * heads_, sequence_, sequence_}, category);
}

Tensor Attention::make_probabilities(const Tensor& qkv, Category category) const {
  Tensor probabilities = make_scores(qkv.rows(), category);
  const Tensor scores = make_scores(qkv.rows(), Category::buffers);
  const Matrix k = of_groups(qkv, group_heads_).transposed();
  for (std::int64_t j = 0; j < group_heads_; ++j)
    gemm(context_.stream(), of_groups(qkv, j), k, of_scores(scores, j));
  context_.kernels().softmax(scores, scale_, {.causal = true}, probabilities);
  return probabilities;
}

void Attention::drop(const Draw& draw, const Tensor& in, const Tensor& out) const {
  const std::int64_t size = sequence_ * sequence_, sequences = in.shape()[0] / heads_;
  const Shape shape{groups_, size};
  for (std::int64_t j = 0; j < group_heads_; ++j)
    for (std::int64_t i = 0; i < sequences; ++i) {
      const std::int64_t at = (j * sequences + i) * groups_ * size;
      const std::int64_t group = (draw.first_token / sequence_ + i) * groups_ * context_.tp.size() +
                                 groups_ * context_.tp.rank();
      context_.kernels().dropout(in.slice(at, shape), dropout_,
                                 random_key(draw.seed, dropout_name_),
                                 {group, j * size, group_heads_ * size}, out.slice(at, shape));
    }
}

Tensor Attention::dropped(const Saved& saved) const {
  if (dropout_ == 0) return saved.probabilities;
  const Tensor result = make_scores(saved.qkv.rows(), Category::buffers);
  drop(saved.draw, saved.probabilities, result);
  return result;
}

// Rotates queries and keys, head by head of the groups.
void Attention::rotate(const Tensor& qkv, bool back) const {
  for (std::int64_t j = 0; rotary_ && j <= group_heads_; ++j) {
    const Matrix heads = of_groups(qkv, j);
    if (back)
      context_.kernels().rotary_backward(heads, {.base = rotary_base_}, heads);
    else
      context_.kernels().rotary(heads, {.base = rotary_base_}, heads);
  }
}

void Attention::attend(Saved& saved, Category kept) const {
  const bool again = context_.recompute_core_attention;
  saved.probabilities = make_probabilities(saved.qkv, again ? Category::buffers : kept);
  saved.context = context_.tensor({saved.qkv.rows(), heads_ * head_}, kept);
  {
    const Tensor weights = dropped(saved);
    const Matrix v = of_groups(saved.qkv, group_heads_ + 1);
    for (std::int64_t j = 0; j < group_heads_; ++j)
      gemm(context_.stream(), of_scores(weights, j), v, of_context(saved.context, j));
  }
  if (again) saved.probabilities = Tensor();
}

void Attention::attend_backward(const Tensor& d_context, Saved& saved) const {
  if (context_.recompute_core_attention) {
    const machine::During again(machine::Part::recompute);
    saved.probabilities = make_probabilities(saved.qkv, Category::buffers);
  }
  const std::int64_t r = group_heads_;
  const Matrix k = of_groups(saved.qkv, r), v = of_groups(saved.qkv, r + 1),
               d_k = of_groups(saved.d_qkv, r), d_v = of_groups(saved.d_qkv, r + 1);
  const auto added = [](std::int64_t j) { return j > 0 ? 1.0F : 0.0F; };

  {
    const Tensor weights = dropped(saved);
    for (std::int64_t j = 0; j < r; ++j)
      gemm(context_.stream(), of_scores(weights, j).transposed(), of_context(d_context, j), d_v, 1,
           added(j));
  }
  // First the gradient of p, then of the scores, in place.
  const Tensor d_scores = make_scores(saved.qkv.rows(), Category::buffers);
  for (std::int64_t j = 0; j < r; ++j)
    gemm(context_.stream(), of_context(d_context, j), v.transposed(), of_scores(d_scores, j));
  if (dropout_ > 0) drop(saved.draw, d_scores, d_scores);
  context_.kernels().softmax_backward(saved.probabilities, d_scores, scale_, {.causal = true},
                                      d_scores);
  for (std::int64_t j = 0; j < r; ++j) {
    gemm(context_.stream(), of_scores(d_scores, j), k, of_groups(saved.d_qkv, j));
    gemm(context_.stream(), of_scores(d_scores, j).transposed(), of_groups(saved.qkv, j), d_k, 1,
         added(j));
  }
}

machine::AttentionOptions Attention::options_of(const Draw& draw, std::int64_t block) const {
  const std::int64_t all_heads = heads_ * context_.tp.size();
  const std::int64_t head = heads_ * context_.tp.rank() + block * group_heads_;
  return {.scale = scale_,
          .dropout = {dropout_, random_key(draw.seed, dropout_name_),
                      draw.first_token / sequence_ * all_heads + head, all_heads}};
}

void Attention::attend_blockwise(Saved& saved, Category kept) const {
  saved.log_sum_exp = context_.row_values(saved.qkv.rows() * heads_, kept);
  saved.context = context_.tensor({saved.qkv.rows(), heads_ * head_}, kept);
  for (std::int64_t block = 0; block < blocks(); ++block) {
    const auto [q, k, v] = block_of(saved.qkv, block);
    flash_attention(context_.stream(), q, k, v, options_of(saved.draw, block),
                    block_of_context(saved.context, block),
                    block_of_rows(saved.log_sum_exp, block));
  }
}

void Attention::attend_blockwise_backward(const Tensor& d_context, Saved& saved) const {
  for (std::int64_t block = 0; block < blocks(); ++block) {
    const auto [q, k, v] = block_of(saved.qkv, block);
    const auto [d_q, d_k, d_v] = block_of(saved.d_qkv, block);
    flash_attention_backward(context_.stream(), q, k, v, options_of(saved.draw, block),
                             block_of_context(saved.context, block),
                             block_of_rows(saved.log_sum_exp, block),
                             block_of_context(d_context, block), d_q, d_k, d_v);
  }
}

void Attention::forward(const Tensor& x, const Tensor& y, Saved& saved, Category kept,
                        const Draw& draw) {
  const std::int64_t tokens = context_.all_rows(x.rows());
  SHARDMARK_CHECK(tokens % sequence_, ==, 0);
  saved.x = x;
  saved.draw = draw;
  saved.qkv = context_.tensor({tokens, (heads_ + 2 * groups_) * head_}, kept);
  qkv_.forward(x, saved.qkv);
  rotate(saved.qkv, false);
  if (context_.flash_attention)
    attend_blockwise(saved, kept);
  else
    attend(saved, kept);
  projection_.forward(saved.context, y);
}

void Attention::backward_input(const Tensor& d_y, const Tensor& d_x, Saved& saved, Category kept) {
  saved.d_qkv = context_.tensor(saved.qkv.shape(), kept);
  {
    const Tensor d_context = context_.tensor(saved.context.shape(), Category::buffers);
    saved.all_d_y = projection_.backward_input(d_y, d_context, kept);
    if (context_.flash_attention)
      attend_blockwise_backward(d_context, saved);
    else
      attend_backward(d_context, saved);
  }
  rotate(saved.d_qkv, true);
  saved.qkv = saved.probabilities = saved.log_sum_exp = Tensor();
  qkv_.backward_input(saved.d_qkv, d_x);
}

void Attention::backward_weights(Saved& saved) {
  projection_.backward_weights(saved.context, saved.all_d_y);
  qkv_.backward_weights(saved.x, saved.d_qkv);
  saved = Saved();
}

Parameters Attention::parameters() { return joined({qkv_.parameters(), projection_.parameters()}); }

}  // namespace layers
