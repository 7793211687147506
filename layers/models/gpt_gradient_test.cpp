// Compares gradients of the whole model in double with finite differences of its loss, on elements
// of every parameter. The five-point formula is
//   D(h) = (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h
// Its truncation error of order h^4 is estimated by D(h) - D(2h), which is fifteen times larger.
// Each of the four losses has a rounding error of norm_bound. Together they add 18/12h of that.

#include <optional>

#include "layers/testing/gpt_case.h"

namespace layers::testing {
namespace {

using machine::Dtype;

void expect_slopes(const GptConfig& config, std::optional<Initializer> initializer = {}) {
  GptCase run{.config = config, .sequences = 2};
  if (initializer) run.initializer = *initializer;
  on_ranks(1, Dtype::float64, [&](Rank& rank) {
    GptRanks ranks(rank, run);
    const double loss = ranks.step();
    ranks.keep_routing();  // a choice that changes has no slope
    const Observed gradients = ranks.gradients();
    std::mt19937 generator(1);
    int powerful = 0, checked = 0;
    for (collectives::Parameter* parameter : ranks.stage(0).parameters()) {
      const std::vector<double> gradient = gradients.at("gradient of " + parameter->name);
      auto* value = parameter->value.as<double>();
      std::uniform_int_distribution<std::size_t> element(0, gradient.size() - 1);
      for (int sample = 0; sample < 6; ++sample) {
        const std::size_t i = element(generator);
        const double here = value[i];
        const auto f = [&](double offset) {
          value[i] = here + offset;
          const double moved = ranks.forward(0);
          ranks.backward(0);  // frees the saved activations
          value[i] = here;
          return moved;
        };
        const auto slope = [&](double h) {
          return (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h);
        };
        const double h = 2e-3;
        const double near = slope(h), far = slope(2 * h);
        const double rounding =
            18 / (12 * h) * loss * norm_bound(Dtype::float64, 3, run.config.ffn());
        const double bound = std::abs(near - far) + rounding;
        EXPECT_LE(std::abs(gradient[i] - near), bound) << parameter->name << "[" << i << "]";
        powerful += bound < 1e-5 * std::abs(gradient[i]) ? 1 : 0;
        ++checked;
      }
    }
    // The bound must be able to fail, so for nearly all elements it is far below the gradient. Rows
    // of the tables for tokens that do not occur have no gradient.
    EXPECT_GT(powerful, checked * 3 / 4);
  });
}

const GptConfig gpt2{.layers = 2, .hidden = 12, .heads = 2, .vocabulary = 20, .sequence = 5};

TEST(GptGradient, IsTheSlopeOfTheLoss) { expect_slopes(gpt2); }

TEST(GptGradient, IsTheSlopeOfBertsLoss) { expect_slopes(bert(gpt2)); }

TEST(GptGradient, IsTheSlopeOfT5sLoss) {
  GptConfig config = t5(gpt2);
  config.sequence = 12;  // most buckets of relative positions occur
  // With small weights, gradients that only pass through scores are close to rounding.
  expect_slopes(config, large_values(17));
}

TEST(GptGradient, IsTheSlopeOfLlamasLoss) {
  GptConfig config = llama(gpt2);
  config.hidden_dropout = config.attention_dropout = 0.2;
  expect_slopes(config);
}

// The auxiliary losses are part of the loss.
TEST(GptGradient, IsTheSlopeOfTheLossWithExperts) {
  GptConfig config = with_experts(gpt2);
  config.moe_layer_freq = 2;
  expect_slopes(config, large_values(17));
  config = with_experts(llama(gpt2));
  config.moe.expert_capacity_factor = 0.75;
  config.moe.shared_expert_intermediate_size = 8;
  config.hidden_dropout = 0.2;
  expect_slopes(config, large_values(18));
}

}  // namespace
}  // namespace layers::testing
