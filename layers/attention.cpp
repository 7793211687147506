#include "layers/attention.h"

#include <cmath>

#include "machine/device/error.h"
#include "machine/device/flash_attention.h"

namespace layers {

using machine::Category;
using machine::gemm;
using machine::Matrix;
using machine::Tensor;

Attention::Attention(const Context& context, const std::string& name, std::int64_t hidden,
                     std::int64_t heads, std::int64_t sequence)
    : context_(context),
      heads_(heads / context.tp.size()),
      head_(hidden / heads),
      sequence_(sequence),
      scale_(1 / std::sqrt(static_cast<double>(head_))),
      qkv_(context, name + ".qkv", hidden, 3 * hidden),
      projection_(context, name + ".projection", hidden, hidden) {
  SHARDMARK_CHECK(heads % context.tp.size(), ==, 0);
  SHARDMARK_CHECK(hidden % heads, ==, 0);
}

Matrix Attention::heads_of(const Tensor& qkv, Part part) const {
  Matrix heads = machine::matrix(qkv);
  const std::int64_t width = qkv.cols();
  heads.data = static_cast<char*>(heads.data) + static_cast<std::size_t>(part) *
                                                    static_cast<std::size_t>(head_) *
                                                    machine::size_of(qkv.dtype());
  heads.rows = sequence_;
  heads.cols = head_;
  heads.row_stride = width;
  heads.batch = {qkv.rows() / sequence_, heads_};
  heads.batch_stride = {sequence_ * width, 3 * head_};
  return heads;
}

Matrix Attention::heads_of_context(const Tensor& context) const {
  Matrix heads = machine::matrix(context);
  const std::int64_t width = context.cols();
  heads.rows = sequence_;
  heads.cols = head_;
  heads.row_stride = width;
  heads.batch = {context.rows() / sequence_, heads_};
  heads.batch_stride = {sequence_ * width, head_};
  return heads;
}

Matrix Attention::scores_of(const Tensor& scores) const {
  Matrix square = machine::matrix(scores);
  square.rows = square.cols = square.row_stride = sequence_;
  square.batch = {scores.shape()[0] / heads_, heads_};
  square.batch_stride = {heads_ * sequence_ * sequence_, sequence_ * sequence_};
  return square;
}

Tensor Attention::make_scores(std::int64_t tokens, Category category) const {
  return context_.tensor({tokens / sequence_ * heads_, sequence_, sequence_}, category);
}

Tensor Attention::make_probabilities(const Tensor& qkv, Category category) const {
  Tensor probabilities = make_scores(qkv.rows(), category);
  const Tensor scores = make_scores(qkv.rows(), Category::buffers);
  gemm(context_.stream(), heads_of(qkv, Part::query), heads_of(qkv, Part::key).transposed(),
       scores_of(scores));
  context_.kernels().causal_softmax(scores, scale_, probabilities);
  return probabilities;
}

void Attention::attend(Saved& saved, Category kept) const {
  const bool again = context_.recompute_core_attention;
  saved.probabilities = make_probabilities(saved.qkv, again ? Category::buffers : kept);
  saved.context = context_.tensor({saved.qkv.rows(), heads_ * head_}, kept);
  gemm(context_.stream(), scores_of(saved.probabilities), heads_of(saved.qkv, Part::value),
       heads_of_context(saved.context));
  if (again) saved.probabilities = Tensor();
}

void Attention::attend_backward(const Tensor& d_context, Saved& saved) const {
  if (context_.recompute_core_attention)
    saved.probabilities = make_probabilities(saved.qkv, Category::buffers);
  const Matrix d_heads = heads_of_context(d_context);
  gemm(context_.stream(), scores_of(saved.probabilities).transposed(), d_heads,
       heads_of(saved.d_qkv, Part::value));

  // Of p first, in place.
  const Tensor d_scores = make_scores(saved.qkv.rows(), Category::buffers);
  gemm(context_.stream(), d_heads, heads_of(saved.qkv, Part::value).transposed(),
       scores_of(d_scores));
  context_.kernels().causal_softmax_backward(saved.probabilities, d_scores, scale_, d_scores);
  gemm(context_.stream(), scores_of(d_scores), heads_of(saved.qkv, Part::key),
       heads_of(saved.d_qkv, Part::query));
  gemm(context_.stream(), scores_of(d_scores).transposed(), heads_of(saved.qkv, Part::query),
       heads_of(saved.d_qkv, Part::key));
}

void Attention::attend_blockwise(Saved& saved, Category kept) const {
  saved.log_sum_exp = context_.row_values(saved.qkv.rows() * heads_, kept);
  saved.context = context_.tensor({saved.qkv.rows(), heads_ * head_}, kept);
  flash_attention(context_.stream(), heads_of(saved.qkv, Part::query),
                  heads_of(saved.qkv, Part::key), heads_of(saved.qkv, Part::value),
                  {.scale = scale_}, heads_of_context(saved.context), saved.log_sum_exp);
}

void Attention::attend_blockwise_backward(const Tensor& d_context, Saved& saved) const {
  flash_attention_backward(context_.stream(), heads_of(saved.qkv, Part::query),
                           heads_of(saved.qkv, Part::key), heads_of(saved.qkv, Part::value),
                           {.scale = scale_}, heads_of_context(saved.context), saved.log_sum_exp,
                           heads_of_context(d_context), heads_of(saved.d_qkv, Part::query),
                           heads_of(saved.d_qkv, Part::key), heads_of(saved.d_qkv, Part::value));
}

void Attention::forward(const Tensor& x, const Tensor& y, Saved& saved, Category kept) {
  const std::int64_t tokens = context_.all_rows(x.rows());
  SHARDMARK_CHECK(tokens % sequence_, ==, 0);
  saved.x = x;
  saved.qkv = context_.tensor({tokens, 3 * heads_ * head_}, kept);
  qkv_.forward(x, saved.qkv);
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
  saved.qkv = saved.probabilities = saved.log_sum_exp = Tensor();
  qkv_.backward_input(saved.d_qkv, d_x);
}

void Attention::backward_weights(Saved& saved) {
  projection_.backward_weights(saved.context, saved.all_d_y);
  qkv_.backward_weights(saved.x, saved.d_qkv);
  saved = Saved();
}

void Attention::initialize(const Initializer& initializer) {
  qkv_.initialize(initializer);
  projection_.initialize(initializer);
}

Parameters Attention::parameters() {
  return {&qkv_.weight(), &qkv_.bias(), &projection_.weight(), &projection_.bias()};
}

}  // namespace layers
