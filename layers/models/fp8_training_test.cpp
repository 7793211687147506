// Trainings whose linear layers multiply in 8 bits follow those in bfloat16. The bound on the
// distance of the loss is stated, not derived: about twice the largest one that was measured
// (layers/README.md). Also the options of a model that 8 bits exclude.

#include <cmath>

#include "layers/testing/gpt_case.h"

namespace layers::testing {
namespace {

using machine::Category, machine::Dtype, machine::Tensor;
using Values = std::vector<double>;

constexpr int steps = 100, sequences = 4;
const GptConfig small{.layers = 2, .hidden = 32, .heads = 4, .vocabulary = 32, .sequence = 16};

// Sequences with one of three increments, which a model learns to continue.
std::vector<std::int32_t> drawn_tokens(int step) {
  std::vector<std::int32_t> tokens;
  std::mt19937 generator(static_cast<unsigned>(step));
  for (int i = 0; i < sequences; ++i) {
    auto token = static_cast<std::int32_t>(generator() % 32);
    const auto increment = static_cast<std::int32_t>(1 + 2 * (generator() % 3));
    for (int j = 0; j <= small.sequence; ++j) {
      tokens.push_back(token);
      token = (token + increment) % 32;
    }
  }
  return tokens;
}

// Returns the mean loss of a token in each step of AdamW.
Values losses(const GptConfig& config, const Fp8Options& fp8, int tp = 1) {
  Values result;
  on_ranks(tp, Dtype::bfloat16, [&](Rank& rank) {
    machine::Device& device = rank.world.device();
    GptStage stage(config, device, rank.tp, Dtype::bfloat16, {}, {.sequence_parallel = tp > 1},
                   nullptr, nullptr, {}, {}, {.options = fp8});
    stage.initialize(Initializer::gpt2(17, config.layers));
    struct States {
      Tensor master, first, second;
    };
    std::vector<States> states;
    for (const collectives::Parameter* parameter : stage.parameters()) {
      const auto made = [&] {
        const Tensor tensor(device, Dtype::float32, parameter->value.shape(), Category::optimizer);
        rank.context.kernels().fill(tensor, 0);
        return tensor;
      };
      states.push_back({made(), made(), made()});
      rank.context.kernels().cast(parameter->value, states.back().master);
    }
    const Tensor out(device, Dtype::float64, {1}, Category::buffers);
    for (int step = 0; step < steps; ++step) {
      const std::vector<std::int32_t> drawn = drawn_tokens(step);
      std::vector<std::int32_t> tokens, targets;
      for (std::size_t i = 0; i < drawn.size(); ++i) {
        const std::size_t at = i % static_cast<std::size_t>(config.sequence + 1);
        if (at > 0) targets.push_back(drawn[i]);
        if (at < static_cast<std::size_t>(config.sequence)) tokens.push_back(drawn[i]);
      }
      stage.zero_gradients();
      stage.forward(0, {tokens.data(), targets.data(), sequences}, {}, out);
      stage.backward(0, {}, {});
      const double count = static_cast<double>(targets.size());
      if (rank.world.rank() == 0) result.push_back(machine::to_doubles(out)[0] / count);
      const Parameters parameters = stage.parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        collectives::Parameter& p = *parameters[i];
        if (p.placement.gradient_partial_over_tp) rank.tp.all_reduce(p.gradient);
        rank.context.kernels().adamw(p.gradient, 1 / count, {.learning_rate = 3e-3}, step + 1,
                                     nullptr, states[i].master, states[i].first, states[i].second,
                                     p.value);
      }
    }
  });
  return result;
}

// Returns the mean over all steps of |loss - other| / other.
double mean_distance(const Values& loss, const Values& other) {
  double sum = 0;
  for (std::size_t i = 0; i < loss.size(); ++i) sum += std::abs(loss[i] - other[i]) / other[i];
  return sum / static_cast<double>(loss.size());
}

constexpr Fp8Options recipes[] = {
    {.format = Fp8Format::hybrid, .amax_history_len = 16, .algorithm = AmaxAlgorithm::max},
    {.format = Fp8Format::e4m3},
    {.format = Fp8Format::hybrid, .recipe = Fp8Recipe::tensorwise},
    {.format = Fp8Format::hybrid, .recipe = Fp8Recipe::blockwise},
    {.format = Fp8Format::e4m3, .recipe = Fp8Recipe::mxfp8}};
constexpr double of_gpt2 = 0.005, of_llama = 0.05;  // stated distances

void expect_near(const GptConfig& config, double stated) {
  const Values wide = losses(config, {});
  EXPECT_LT(wide.back(), wide.front() / 2);  // the model learns
  for (const Fp8Options& fp8 : recipes) {
    const double distance = mean_distance(losses(config, fp8), wide);
    EXPECT_LE(distance, stated) << name(fp8.recipe) << " " << name(fp8.format);
    EXPECT_GT(distance, 0) << name(fp8.recipe);  // the option has an effect
  }
}

TEST(Fp8Training, FollowsBfloat16) { expect_near(small, of_gpt2); }
TEST(Fp8Training, LlamasShapeFollowsBfloat16) { expect_near(llama(small), of_llama); }

// Over tp with sequence parallelism: the gathers send codes, and ranks share scales.
TEST(Fp8Training, TwoRanksFollowOne) {
  for (const Fp8Options& fp8 : {recipes[0], recipes[2]}) {
    const double distance = mean_distance(losses(small, fp8, 2), losses(small, fp8));
    EXPECT_LE(distance, of_gpt2) << name(fp8.recipe);
  }
}

TEST(Fp8Training, RejectsOptionsThatExclude) {
  on_ranks(1, Dtype::bfloat16, [](Rank& rank) {
    const auto why = [&](const GptConfig& config, const ActivationOptions& options) -> std::string {
      try {
        GptStage(config, rank.world.device(), rank.tp, Dtype::bfloat16, {}, options, nullptr,
                 nullptr, {}, {}, {.options = recipes[0]});
      } catch (const std::invalid_argument& error) {
        return error.what();
      }
      return "accepted";
    };
    EXPECT_EQ(why(small, {.recompute_granularity = RecomputeGranularity::selective}), "accepted");
    EXPECT_EQ(
        why(small, {.recompute_granularity = RecomputeGranularity::full}),
        "fp8-format hybrid requires recompute-granularity none or selective, because a second "
        "forward would choose scales and shift the history again (got full)");
    EXPECT_EQ(why(with_experts(small), {}),
              "fp8-format hybrid requires a model without experts (got num-experts 4)");
    EXPECT_EQ(why(t5(small), {}),
              "fp8-format hybrid requires architecture decoder or encoder (got encoder-decoder)");
    EXPECT_EQ(why(small, {.fused_epilogues = true}),
              "fp8-format hybrid requires fused-epilogues off (got on)");
  });
}

}  // namespace
}  // namespace layers::testing
