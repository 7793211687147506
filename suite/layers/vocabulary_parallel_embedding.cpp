// Claim: a token table cut along the vocabulary, and positions (GPT-2's), give one rank's bits: of
// the rows that are added up over tp one is not zero. One all-reduce forward (with sequence
// parallelism a reduce-scatter, and an all-gather for the weights); nothing is kept (Shoeybi et al.
// 2019, arXiv:1909.08053, section 3).
#include "layers/embedding.h"
#include "suite/layers/layer_unit.h"

namespace suite {
namespace {

class VocabularyParallelEmbedding final : public JudgedLayer {
 public:
  static constexpr std::string_view name = "vocabulary_parallel_embedding";
  static constexpr std::string_view about =
      "tokens looked up in a table cut along the vocabulary, and positions: forward and weights";
  static constexpr LayerTraits traits{.takes_tokens = true,
                                      .has_vocabulary = true,
                                      .has_architecture = true,
                                      .same_bits_at_every_degree = true};

  static LayerClaims claims(const LayerCase& c) {
    const std::int64_t h = c.hidden_size;
    return {
        .cut = {{"vocab-size", c.vocab_size}},
        .parameters =
            c.vocab_size / c.ranks * h + (c.architecture == "gpt2" ? c.seq_length * h : 0),
        .calls = {calls(c, {.outward = 1}), {}, calls(c, {.inward = 1})},
        .buffers = LayerSizes(c).gathered,
        .longest_sum = c.tokens(),  // of rows, in the gradients
    };
  }

  VocabularyParallelEmbedding(const layers::Context& context, const LayerCase& c)
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
  Tensor d_y_;  // the caller's
};

const bool registered = harness::add<LayerUnit<VocabularyParallelEmbedding>>();

}  // namespace
}  // namespace suite
