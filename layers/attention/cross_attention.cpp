#include "layers/attention/cross_attention.h"

#include "machine/base/error.h"
#include "machine/device/gemm.h"
#include "machine/world/step_clock.h"

namespace layers {

CrossAttention::CrossAttention(const Context& context, const std::string& name,
                               const GptConfig& config)
    : context_(context),
      heads_(config.heads / context.tp.size()),
      head_(config.head()),
      positions_(config.sequence),
      dropout_(config.attention_dropout),
      dropout_name_(name + ".probabilities.dropout"),
      q_(context, name + ".q", config.hidden, config.hidden, {.bias = !config.disable_bias_linear}),
      kv_(context, name + ".kv", config.hidden, config.hidden,
          {.bias = !config.disable_bias_linear, .stacked = 2}),
      projection_(context, name + ".projection", config.hidden, config.hidden,
                  {.bias = !config.disable_bias_linear}) {
  SHARDMARK_CHECK(context.flash_attention || context.cp.splits(), ==, false);
}

Matrix CrossAttention::heads_of(const Tensor& tensor, std::int64_t first) const {
  Matrix heads = machine::matrix(tensor);
  const std::int64_t width = tensor.cols();
  heads.data = tensor.slice(first, {head_}).data();
  heads.rows = positions_;
  heads.cols = head_;
  heads.batch = {tensor.rows() / positions_, heads_};
  heads.batch_stride = {positions_ * width, head_};
  return heads;
}

Matrix CrossAttention::squares_of(const Tensor& scores) const {
  Matrix squares = machine::matrix(scores);
  squares.rows = squares.cols = squares.row_stride = positions_;
  squares.batch = {scores.shape()[0] / heads_, heads_};
  squares.batch_stride = {heads_ * positions_ * positions_, positions_ * positions_};
  return squares;
}

Tensor CrossAttention::make_scores(const Saved& saved, Category category) const {
  return context_.tensor({saved.q.rows() / positions_ * heads_, positions_, positions_}, category);
}

machine::SoftmaxMask CrossAttention::mask_of(const Saved& saved) const {
  return {false, saved.lengths, saved.q.rows() / positions_, heads_};
}

void CrossAttention::make_probabilities(Saved& saved, Category category) const {
  saved.probabilities = make_scores(saved, category);
  const Tensor scores = make_scores(saved, Category::buffers);
  gemm(context_.stream(), heads_of(saved.q, 0), heads_of(saved.kv, 0).transposed(),
       squares_of(scores));
  context_.kernels().softmax(scores, 1, mask_of(saved), saved.probabilities);
}

void CrossAttention::drop(const Draw& draw, const Tensor& in, const Tensor& out) const {
  const std::int64_t size = positions_ * positions_, sequences = in.shape()[0] / heads_;
  const Shape shape{heads_, size};
  for (std::int64_t i = 0; i < sequences; ++i) {
    const std::int64_t head = (draw.first_token / positions_ + i) * heads_ * context_.tp.size() +
                              heads_ * context_.tp.rank();
    context_.kernels().dropout(in.slice(i * heads_ * size, shape), dropout_,
                               random_key(draw.seed, dropout_name_), {head, 0, size},
                               out.slice(i * heads_ * size, shape));
  }
}

void CrossAttention::forward(const Tensor& x, const Tensor& encoded, const Tensor& y, Saved& saved,
                             Category kept, const Draw& draw, const std::int32_t* lengths) {
  const std::int64_t tokens = context_.all_rows(x.rows()), width = heads_ * head_;
  SHARDMARK_CHECK(tokens % positions_, ==, 0);
  SHARDMARK_CHECK(encoded.rows(), ==, x.rows());
  saved.x = x;
  saved.encoded = encoded;
  saved.draw = draw;
  saved.lengths = lengths;
  saved.q = context_.tensor({tokens, width}, kept);
  q_.forward(x, saved.q);
  saved.kv = context_.tensor({tokens, 2 * width}, kept);
  kv_.forward(encoded, saved.kv);
  const bool again = context_.recompute_core_attention;
  make_probabilities(saved, again ? Category::buffers : kept);
  saved.context = context_.tensor({tokens, width}, kept);
  {
    Tensor weights = saved.probabilities;
    if (dropout_ > 0) {
      weights = make_scores(saved, Category::buffers);
      drop(draw, saved.probabilities, weights);
    }
    gemm(context_.stream(), squares_of(weights), heads_of(saved.kv, width),
         heads_of(saved.context, 0));
  }
  if (again) saved.probabilities = Tensor();
  projection_.forward(saved.context, y);
}

void CrossAttention::backward_input(const Tensor& d_y, const Tensor& d_x, const Tensor& d_encoded,
                                    Saved& saved, Category kept) {
  const std::int64_t width = heads_ * head_;
  saved.d_q = context_.tensor(saved.q.shape(), kept);
  saved.d_kv = context_.tensor(saved.kv.shape(), kept);
  {
    const Tensor d_context = context_.tensor(saved.context.shape(), Category::buffers);
    saved.all_d_y = projection_.backward_input(d_y, d_context, kept);
    if (context_.recompute_core_attention) {
      const machine::During again(machine::Part::recompute);
      make_probabilities(saved, Category::buffers);
    }
    const Matrix slope = heads_of(d_context, 0);
    {
      Tensor weights = saved.probabilities;
      if (dropout_ > 0) {
        weights = make_scores(saved, Category::buffers);
        drop(saved.draw, saved.probabilities, weights);
      }
      gemm(context_.stream(), squares_of(weights).transposed(), slope, heads_of(saved.d_kv, width));
    }
    // First the gradient of p, then of the scores, in place.
    const Tensor d_scores = make_scores(saved, Category::buffers);
    gemm(context_.stream(), slope, heads_of(saved.kv, width).transposed(), squares_of(d_scores));
    if (dropout_ > 0) drop(saved.draw, d_scores, d_scores);
    context_.kernels().softmax_backward(saved.probabilities, d_scores, 1, mask_of(saved), d_scores);
    gemm(context_.stream(), squares_of(d_scores), heads_of(saved.kv, 0), heads_of(saved.d_q, 0));
    gemm(context_.stream(), squares_of(d_scores).transposed(), heads_of(saved.q, 0),
         heads_of(saved.d_kv, 0));
  }
  saved.q = saved.kv = saved.probabilities = Tensor();
  q_.backward_input(saved.d_q, d_x);
  const Tensor added = context_.tensor(d_encoded.shape(), Category::buffers);
  kv_.backward_input(saved.d_kv, added);
  context_.kernels().add(d_encoded, added, d_encoded);
}

void CrossAttention::backward_weights(Saved& saved) {
  projection_.backward_weights(saved.context, saved.all_d_y);
  kv_.backward_weights(saved.encoded, saved.d_kv);
  q_.backward_weights(saved.x, saved.d_q);
  saved = Saved();
}

Parameters CrossAttention::parameters() {
  return joined({q_.parameters(), kv_.parameters(), projection_.parameters()});
}

}  // namespace layers
