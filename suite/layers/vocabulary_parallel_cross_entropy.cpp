// Claim: norm, output layer and cross-entropy over a vocabulary cut over tp give the loss and the
// gradients of the whole one; the logits are never gathered: exactly three all-reduces of [tokens]
// accumulators forward, one of d_x backward (Shoeybi et al. 2019, arXiv:1909.08053, section 3; with
// sequence parallelism an all-gather more in each direction, Korthikanti et al. 2022,
// arXiv:2205.05198).
#include <algorithm>

#include "layers/embedding.h"
#include "layers/output_head.h"
#include "suite/layers/layer_unit.h"

namespace suite {
namespace {

class VocabularyParallelCrossEntropy final : public JudgedLayer {
 public:
  static constexpr std::string_view name = "vocabulary_parallel_cross_entropy";
  static constexpr std::string_view about =
      "norm, output layer and loss over a vocabulary that is cut: all three passes";
  static constexpr LayerTraits traits{
      .gives_loss = true, .has_vocabulary = true, .has_architecture = true};

  static LayerClaims claims(const LayerCase& c) {
    const LayerSizes z(c);
    const std::int64_t h = c.hidden_size, V = c.vocab_size, t = c.ranks;
    // norm(x) and its statistics; the logits, which become their gradient.
    const std::size_t for_weights = z.own + z.R + z.E * z.n * static_cast<std::size_t>(V / t);
    return {
        .cut = {{"vocab-size", V}},
        .parameters = V / t * h + (c.architecture == "gpt2" ? 2 : 1) * h,
        .calls = {calls(c, {.inward = 1, .row_values = 3}), calls(c, {.outward = 1}),
                  calls(c, {.inward = 1})},
        .saved = for_weights + 2 * z.n * z.A,  // maximum and sum of a row
        .saved_for_weights = for_weights,
        // Forward target and loss of a row, after norm(x) of all; backward its gradient to the end.
        .buffers = std::max({z.gathered, 2 * z.n * z.A, z.own + z.gathered}),
        .flops = 3.0 * 2 * static_cast<double>(c.tokens() * h * V / t),
        .longest_sum = std::max<std::int64_t>({V, h, c.tokens()}),
    };
  }

  VocabularyParallelCrossEntropy(const layers::Context& context, const LayerCase& c)
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

const bool registered = harness::add<LayerUnit<VocabularyParallelCrossEntropy>>();

}  // namespace
}  // namespace suite
