// Claim: a token table sharded along the vocabulary, with GPT-2's positions, gives the bits of one
// rank, because only one of the rows that are summed over tp is not zero. It sends one all-reduce
// forward (with sequence parallelism a reduce-scatter, and an all-gather for the weights) and keeps
// no activations (Shoeybi et al. 2019, arXiv:1909.08053, section 3).
//
// Claim: norm, output layer and cross-entropy over a vocabulary sharded over tp give the loss and
// the gradients of the whole vocabulary. The logits are never gathered. Forward sends exactly three
// all-reduces of [tokens] accumulators, backward one of d_x (Shoeybi et al. 2019, arXiv:1909.08053,
// section 3; with sequence parallelism one more all-gather in each direction, Korthikanti et al.
// 2022, arXiv:2205.05198).

#include <algorithm>

#include "layers/embedding.h"
#include "layers/output_head.h"
#include "suite/layers/layer_unit.h"

namespace suite {
namespace {

LayerClaims embedding_claims(const LayerCase& c) {
  const std::int64_t h = c.hidden_size;
  return {
      .cut = {{"vocab-size", c.vocab_size}},
      .parameters = c.vocab_size / c.ranks * h + (c.architecture == "gpt2" ? c.seq_length * h : 0),
      .calls = {calls(c, {.outward = 1}), {}, calls(c, {.inward = 1})},
      .buffers = LayerSizes(c).gathered,
      .longest_sum = c.tokens(),  // the sum over rows in the gradients
  };
}

class VocabularyParallelEmbedding final : public JudgedLayer {
 public:
  VocabularyParallelEmbedding(const layers::Context& context, const std::string&,
                              const LayerCase& c)
      : table_(layers::declare_token_table(context, c.vocab_size, c.hidden_size, false)),
        layer_(context, table_, c.model()) {}

  layers::Parameters parameters() override { return layer_.parameters(); }
  void forward(const LayerInput& in, const Tensor& y) override {
    tokens_ = in.tokens;
    layer_.forward(tokens_, y);
  }
  void backward_input(const Tensor& d_y, const Tensor&) override { d_y_ = d_y; }
  void backward_weights() override { layer_.backward_weights(tokens_, d_y_); }

 private:
  collectives::Parameter table_;
  layers::Embedding layer_;
  const std::int32_t* tokens_ = nullptr;
  Tensor d_y_;  // a tensor of the layer's caller
};

constexpr LayerTraits embedding{
    .name = "vocabulary_parallel_embedding",
    .about = "token table sharded along the vocabulary, and positions: forward and weights",
    .claims = embedding_claims,
    .make = make_layer<VocabularyParallelEmbedding>,
    .takes_tokens = true,
    .has_vocabulary = true,
    .has_architecture = true,
    .same_bits_at_every_degree = true};
LayerClaims cross_entropy_claims(const LayerCase& c) {
  const LayerSizes z(c);
  const std::int64_t h = c.hidden_size, V = c.vocab_size, own = V / c.ranks;
  // backward_weights reads norm(x), its statistics, and the logits, which become their gradient.
  const std::size_t for_weights = z.own + z.R + z.E * z.n * static_cast<std::size_t>(own);
  return {
      .cut = {{"vocab-size", V}},
      .parameters = own * h + (c.architecture == "gpt2" ? 2 : 1) * h,
      .calls = {calls(c, {.inward = 1, .row_values = 3}), calls(c, {.outward = 1}),
                calls(c, {.inward = 1})},
      .saved = for_weights + 2 * z.n * z.A,  // maximum and sum of a row
      .saved_for_weights = for_weights,
      // Forward first holds norm(x) of all rows, then target and loss of each row. Backward holds
      // the gradient of norm(x) until it ends.
      .buffers = std::max({z.gathered, 2 * z.n * z.A, z.own + z.gathered}),
      .flops = 3.0 * 2 * static_cast<double>(c.tokens() * h * own),
      .longest_sum = std::max<std::int64_t>({V, h, c.tokens()}),
  };
}

class VocabularyParallelCrossEntropy final : public JudgedLayer {
 public:
  VocabularyParallelCrossEntropy(const layers::Context& context, const std::string&,
                                 const LayerCase& c)
      : table_(c.model().untie_embeddings_and_output_weights
                   ? layers::declare_output_weight(context, c.vocab_size, c.hidden_size)
                   : layers::declare_token_table(context, c.vocab_size, c.hidden_size, false)),
        layer_(context, table_, c.model()) {}

  layers::Parameters parameters() override { return layer_.parameters(); }
  void forward(const LayerInput& in, const Tensor& loss) override {
    layer_.forward(in.x, in.tokens, loss, saved_);
  }
  void backward_input(const Tensor&, const Tensor& d_x) override {
    layer_.backward_input(loss_factor, d_x, saved_, Category::buffers);
  }
  void backward_weights() override { layer_.backward_weights(saved_); }

 private:
  collectives::Parameter table_;
  layers::OutputHead layer_;
  layers::OutputHead::Saved saved_;
};

constexpr LayerTraits cross_entropy{
    .name = "vocabulary_parallel_cross_entropy",
    .about = "norm, output layer and loss over a sharded vocabulary: all three passes",
    .claims = cross_entropy_claims,
    .make = make_layer<VocabularyParallelCrossEntropy>,
    .gives_loss = true,
    .has_vocabulary = true,
    .has_architecture = true};
const bool registered =
    harness::add<LayerUnit<embedding>>() && harness::add<LayerUnit<cross_entropy>>();

}  // namespace
}  // namespace suite
