#include "layers/attention/attention.h"

#include <cmath>
#include <span>
#include <utility>

#include "machine/base/error.h"
#include "machine/world/step_clock.h"

namespace layers {

Attention::Attention(const Context& context, const std::string& name, const GptConfig& config)
    : context_(context),
      heads_(config.heads / context.tp.size()),
      groups_(config.query_groups() / context.tp.size()),
      head_(config.head()),
      sequence_(context.cp.rows(config.sequence)),
      group_heads_(config.heads / config.query_groups()),
      causal_(!config.encoder()),
      rotary_(config.rotary()),
      rotary_base_(config.rotary_base),
      scale_(config.relative() ? 1 : 1 / std::sqrt(static_cast<double>(head_))),
      dropout_(config.attention_dropout),
      dropout_name_(name + ".probabilities.dropout"),
      qkv_(context, name + ".qkv", config.hidden, config.qkv(),
           {.bias = !config.disable_bias_linear}),
      projection_(context, name + ".projection", config.hidden, config.hidden,
                  {.bias = !config.disable_bias_linear}) {
  SHARDMARK_CHECK(config.query_groups() % context.tp.size(), ==, 0);
  SHARDMARK_CHECK(config.heads % config.query_groups(), ==, 0);
  SHARDMARK_CHECK(config.hidden % config.heads, ==, 0);
  SHARDMARK_CHECK((context.flash_attention && causal_) || !context.cp.splits(), ==, true);
  SHARDMARK_CHECK(config.relative() && (context.flash_attention || group_heads_ > 1), ==, false);
  if (config.sparse.on()) make_sparse(config.sparse_options(), config.heads);
}

void Attention::make_sparse(const SparseOptions& options, int heads) {
  SHARDMARK_CHECK(context_.flash_attention && !context_.cp.splits(), ==, true);
  SHARDMARK_CHECK(options.pattern.unidirectional, ==, causal_);
  SHARDMARK_CHECK(sequence_ % options.block, ==, 0);
  const std::int64_t count = sequence_ / options.block;
  const SparseLayout layout = sparse_layout(options.pattern, heads, static_cast<int>(count));
  const std::int64_t of_block = heads_ / blocks(), size = count * count;
  for (std::int64_t block = 0; block < blocks(); ++block) {
    const std::int64_t first = heads_ * context_.tp.rank() + block * of_block;
    const std::span present(layout.present);
    sparse_.push_back(std::make_unique<machine::SparseAttention>(
        context_.device,
        machine::BlockMask{of_block, count, options.block,
                           present.subspan(static_cast<std::size_t>(first * size),
                                           static_cast<std::size_t>(of_block * size))}));
  }
}

std::optional<std::int64_t> Attention::scores() const {
  std::int64_t sum = 0;
  for (const auto& one : sparse_) {
    if (!one->scores()) return {};
    sum += *one->scores();
  }
  return sum;
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

machine::SoftmaxMask Attention::mask_of(const Saved& saved) const {
  return {causal_, saved.lengths, saved.qkv.rows() / sequence_, groups_};
}

Tensor Attention::make_probabilities(const Saved& saved, Category category) const {
  const Tensor& qkv = saved.qkv;
  Tensor probabilities = make_scores(qkv.rows(), category);
  const Tensor scores = make_scores(qkv.rows(), Category::buffers);
  const Matrix k = of_groups(qkv, group_heads_).transposed();
  for (std::int64_t j = 0; j < group_heads_; ++j)
    gemm(context_.stream(), of_groups(qkv, j), k, of_scores(scores, j));
  if (saved.bias) add_relative_bias(context_, saved.bias, scores);
  context_.kernels().softmax(scores, scale_, mask_of(saved), probabilities);
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
  if (!rotary_) return;
  for (const Segment& rows : context_.cp.segments(sequence_))
    for (std::int64_t j = 0; j <= group_heads_; ++j) {
      Matrix heads = of_groups(qkv, j);
      heads.data = qkv.slice(rows.local * qkv.cols() + j * head_, {head_}).data();
      heads.rows = rows.count;
      const machine::Rotary by{rotary_base_, rows.global, rows.stride};
      if (back)
        context_.kernels().rotary_backward(heads, by, heads);
      else
        context_.kernels().rotary(heads, by, heads);
    }
}

void Attention::attend(Saved& saved, Category kept) const {
  const bool again = context_.recompute_core_attention;
  saved.probabilities = make_probabilities(saved, again ? Category::buffers : kept);
  saved.context = context_.tensor({saved.qkv.rows(), heads_ * head_}, kept);
  {
    const Tensor weights = dropped(saved);
    const Matrix v = of_groups(saved.qkv, group_heads_ + 1);
    for (std::int64_t j = 0; j < group_heads_; ++j)
      gemm(context_.stream(), of_scores(weights, j), v, of_context(saved.context, j));
  }
  if (again) saved.probabilities = Tensor();
}

void Attention::attend_backward(const Tensor& d_context, Saved& saved, const Tensor& d_bias) const {
  if (context_.recompute_core_attention) {
    const machine::During again(machine::Part::recompute);
    saved.probabilities = make_probabilities(saved, Category::buffers);
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
  context_.kernels().softmax_backward(saved.probabilities, d_scores, scale_, mask_of(saved),
                                      d_scores);
  if (saved.bias) add_relative_bias_gradient(context_, saved.bias, d_scores, d_bias);
  for (std::int64_t j = 0; j < r; ++j) {
    gemm(context_.stream(), of_scores(d_scores, j), k, of_groups(saved.d_qkv, j));
    gemm(context_.stream(), of_scores(d_scores, j).transposed(), of_groups(saved.qkv, j), d_k, 1,
         added(j));
  }
}

machine::AttentionOptions Attention::options_of(const Saved& saved, std::int64_t block) const {
  const std::int64_t all_heads = heads_ * context_.tp.size();
  const std::int64_t head = heads_ * context_.tp.rank() + block * group_heads_;
  return {.scale = scale_,
          .causal = causal_,
          .lengths = saved.lengths,
          .dropout = {dropout_, random_key(saved.draw.seed, dropout_name_),
                      saved.draw.first_token / sequence_ * all_heads + head, all_heads}};
}

void Attention::compute_blocks(const Saved& saved) const {
  for (std::int64_t block = 0; block < blocks(); ++block) {
    const auto [q, k, v] = block_of(saved.qkv, block);
    const machine::AttentionOptions options = options_of(saved, block);
    const Matrix out = block_of_context(saved.context, block);
    const Tensor log_sum_exp = block_of_rows(saved.log_sum_exp, block);
    if (sparse_.empty())
      flash_attention(context_.stream(), q, k, v, options, out, log_sum_exp);
    else
      sparse_[static_cast<std::size_t>(block)]->forward(q, k, v, options, out, log_sum_exp);
  }
}

void Attention::attend_blockwise(Saved& saved, Category kept) const {
  const bool again = context_.recompute_core_attention;
  const std::int64_t tokens = saved.qkv.rows();
  saved.log_sum_exp = context_.row_values(tokens * heads_, again ? Category::buffers : kept);
  saved.context = context_.tensor({tokens, heads_ * head_}, kept);
  compute_blocks(saved);
  if (again) saved.log_sum_exp = Tensor();
}

void Attention::attend_blockwise_backward(const Tensor& d_context, Saved& saved) const {
  if (context_.recompute_core_attention) {
    const machine::During again(machine::Part::recompute);
    saved.log_sum_exp = context_.row_values(saved.qkv.rows() * heads_, Category::buffers);
    compute_blocks(saved);  // writes the same bits to the context
  }
  for (std::int64_t block = 0; block < blocks(); ++block) {
    const auto [q, k, v] = block_of(saved.qkv, block);
    const auto [d_q, d_k, d_v] = block_of(saved.d_qkv, block);
    const machine::AttentionOptions options = options_of(saved, block);
    const Matrix out = block_of_context(saved.context, block),
                 d_out = block_of_context(d_context, block);
    const Tensor log_sum_exp = block_of_rows(saved.log_sum_exp, block);
    if (sparse_.empty())
      flash_attention_backward(context_.stream(), q, k, v, options, out, log_sum_exp, d_out, d_q,
                               d_k, d_v);
    else
      sparse_[static_cast<std::size_t>(block)]->backward(q, k, v, options, out, log_sum_exp, d_out,
                                                         d_q, d_k, d_v);
  }
}

Attention::Parts Attention::make_parts(std::int64_t tokens, Category category) const {
  const std::int64_t keys = groups_ * head_;
  return {context_.tensor({tokens, heads_ * head_}, category),
          context_.tensor({tokens, keys}, category), context_.tensor({tokens, keys}, category)};
}

void Attention::copy_columns(const Tensor& qkv, const Parts& parts, Copy direction) const {
  const std::int64_t r = group_heads_;
  const auto copy = [&](const Tensor& part, std::int64_t from, std::int64_t to, std::int64_t cols) {
    const auto bytes = [](const Tensor& tensor) { return tensor.row_range(0, 1).bytes(); };
    const Tensor whole = qkv.slice(from, {cols}), own = part.slice(to, {cols});
    if (direction == Copy::to_parts)
      context_.stream().copy_rows(own.data(), bytes(part), whole.data(), bytes(qkv), own.bytes(),
                                  qkv.rows());
    else
      context_.stream().copy_rows(whole.data(), bytes(qkv), own.data(), bytes(part), own.bytes(),
                                  qkv.rows());
  };
  for (std::int64_t group = 0; group < groups_; ++group) {
    const std::int64_t first = group * (r + 2) * head_;
    copy(parts.q, first, group * r * head_, r * head_);
    copy(parts.k, first + r * head_, group * head_, head_);
    copy(parts.v, first + (r + 1) * head_, group * head_, head_);
  }
}

void Attention::attend_over_cp(Saved& saved, Category kept) {
  const std::int64_t tokens = saved.qkv.rows(), sequences = tokens / sequence_;
  if (!over_cp_ || over_cp_->sequences() != sequences)
    over_cp_ =
        std::make_unique<ContextAttention>(context_.cp, context_.device, context_.dtype,
                                           HeadShape{sequences, heads_, groups_, head_}, scale_);
  const bool again = context_.recompute_core_attention;
  const Parts parts =
      make_parts(tokens, over_cp_->keeps_parts() || again ? kept : Category::buffers);
  copy_columns(saved.qkv, parts, Copy::to_parts);
  saved.qkv = Tensor();
  saved.context = context_.tensor({tokens, heads_ * head_}, kept);
  const Attended tensors{parts.q, parts.k, parts.v, saved.context, {}};
  over_cp_->forward(tensors, saved.over_cp, again ? Category::buffers : kept);
  if (!again) return;
  saved.over_cp = {};
  saved.parts = tensors;
}

AttentionGradients Attention::attend_over_cp_backward(const Tensor& d_context, Saved& saved) const {
  if (context_.recompute_core_attention) {
    const machine::During again(machine::Part::recompute);
    over_cp_->forward(std::exchange(saved.parts, {}), saved.over_cp, Category::buffers);
  }
  const Parts parts = make_parts(d_context.rows(), Category::buffers);
  const AttentionGradients gradients{parts.q, parts.k, parts.v};
  over_cp_->backward(d_context, gradients, saved.over_cp);
  return gradients;
}

void Attention::forward(const Tensor& x, const Tensor& y, Saved& saved, Category kept,
                        const Draw& draw, const std::int32_t* lengths, const RelativeBias& bias) {
  const std::int64_t tokens = context_.all_rows(x.rows());
  SHARDMARK_CHECK(tokens % sequence_, ==, 0);
  saved.x = x;
  saved.draw = draw;
  saved.lengths = lengths;
  saved.bias = bias;
  saved.qkv = context_.tensor({tokens, (heads_ + 2 * groups_) * head_},
                              context_.cp.splits() ? Category::buffers : kept);
  qkv_.forward(x, saved.qkv);
  rotate(saved.qkv, false);
  if (context_.cp.splits())
    attend_over_cp(saved, kept);
  else if (context_.flash_attention)
    attend_blockwise(saved, kept);
  else
    attend(saved, kept);
  projection_.forward(saved.context, y);
}

void Attention::backward_input(const Tensor& d_y, const Tensor& d_x, Saved& saved, Category kept,
                               const Tensor& d_bias) {
  const Shape shape{saved.context.rows(), (heads_ + 2 * groups_) * head_};
  const bool over_cp = context_.cp.splits();
  if (!over_cp) saved.d_qkv = context_.tensor(shape, kept);
  AttentionGradients apart;
  {
    const Tensor d_context = context_.tensor(saved.context.shape(), Category::buffers);
    saved.all_d_y = projection_.backward_input(d_y, d_context, kept);
    if (over_cp)
      apart = attend_over_cp_backward(d_context, saved);
    else if (context_.flash_attention)
      attend_blockwise_backward(d_context, saved);
    else
      attend_backward(d_context, saved, d_bias);
  }
  if (over_cp) {
    saved.d_qkv = context_.tensor(shape, kept);
    copy_columns(saved.d_qkv, {apart.d_q, apart.d_k, apart.d_v}, Copy::from_parts);
    apart = {};
  }
  rotate(saved.d_qkv, true);
  saved.qkv = saved.probabilities = saved.log_sum_exp = Tensor();
  if (!context_.joins_halves(kept)) return qkv_.backward_input(saved.d_qkv, d_x, kept);
  qkv_.backward(saved.x, saved.d_qkv, d_x);
  saved.x = saved.d_qkv = Tensor();
}

void Attention::backward_weights(Saved& saved) {
  projection_.backward_weights(saved.context, saved.all_d_y);
  if (saved.x) qkv_.backward_weights(saved.x, saved.d_qkv);
  saved = Saved();
}

Parameters Attention::parameters() { return joined({qkv_.parameters(), projection_.parameters()}); }

}  // namespace layers
