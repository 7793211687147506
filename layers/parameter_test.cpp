// Initial values: the same global model under every sharding, different for every parameter.

#include "layers/parameter.h"

#include <set>

#include "layers/testing/gpt_case.h"

namespace layers::testing {
namespace {

using machine::Dtype;

const GptConfig config{.layers = 4, .hidden = 24, .heads = 4, .vocabulary = 44, .sequence = 7};

const GptConfig llamas =
    llama({.layers = 4, .hidden = 32, .heads = 8, .vocabulary = 44, .sequence = 7});

Observed initial(int tp, int stages, Dtype dtype, const Initializer& initializer,
                 const GptConfig& shape = config) {
  return observe(tp, dtype, [&](Rank& rank) {
    return GptRanks(rank, {.config = shape,
                           .tp = tp,
                           .dtype = dtype,
                           .stages = stages,
                           .initializer = initializer})
        .values();
  });
}

TEST(InitialValues, DoNotDependOnTheSharding) {
  for (const Dtype dtype : machine::floating_dtypes) {
    const Initializer initializer = Initializer::conformance(3, config.layers);
    for (const GptConfig& shape : {config, llamas}) {
      const Observed whole = initial(1, 1, dtype, initializer, shape);
      for (const int tp : {2, 4}) EXPECT_EQ(initial(tp, 1, dtype, initializer, shape), whole);
      EXPECT_EQ(initial(2, 4, dtype, initializer, shape), whole);
    }
  }
}

TEST(InitialValues, DifferByParameterAndSeed) {
  std::set<double> first_values;
  for (const unsigned seed : {1u, 2u}) {
    for (const auto& [name, values] :
         initial(1, 1, Dtype::float64, Initializer::conformance(seed, config.layers)))
      EXPECT_TRUE(first_values.insert(values.front()).second) << name;
  }
}

TEST(InitialValues, MatchGpt2) {
  const Observed values = initial(1, 1, Dtype::float64, Initializer::gpt2(9, config.layers));
  const auto ends_with = [](const std::string& name, const char* end) {
    return std::string_view(name).ends_with(end);
  };
  for (const auto& [name, v] : values) {
    if (ends_with(name, ".gain")) {
      for (const double gain : v) EXPECT_EQ(gain, 1) << name;
    } else if (ends_with(name, ".bias")) {
      for (const double bias : v) EXPECT_EQ(bias, 0) << name;
    } else {
      const bool residual = ends_with(name, "projection.weight") || ends_with(name, "fc2.weight");
      const double stddev = residual ? 0.02 / std::sqrt(2.0 * config.layers) : 0.02;
      double squares = 0, sum = 0;
      for (const double x : v) {
        squares += x * x;
        sum += x;
      }
      // The standard error of a sample variance is the variance times sqrt(2/n). Six standard
      // errors have a probability of two in a billion.
      const auto n = static_cast<double>(v.size());
      EXPECT_LE(std::abs(squares / n / (stddev * stddev) - 1), 6 * std::sqrt(2 / n)) << name;
      EXPECT_LE(std::abs(sum / n), 6 * stddev / std::sqrt(n)) << name;
    }
  }
}

TEST(InitialValues, ForConformanceAreAllRandom) {
  for (const auto& [name, values] :
       initial(1, 1, Dtype::float64, Initializer::conformance(1, config.layers)))
    for (const double value : values) EXPECT_TRUE(value != 0 && value != 1) << name;
}

TEST(Declare, DecaysMatricesOnly) {
  on_ranks(2, Dtype::float32, [](Rank& rank) {
    GptRanks ranks(rank, {.config = config, .tp = 2, .dtype = Dtype::float32});
    int matrices = 0;
    for (const collectives::Parameter* p : ranks.stage(0).parameters()) {
      EXPECT_EQ(p->weight_decay, p->global_shape.rank() == 2) << p->name;
      matrices += p->weight_decay ? 1 : 0;
    }
    EXPECT_EQ(matrices, 2 + 4 * config.layers);
  });
}

TEST(Declare, TiesTheTableOnlyOverTwoStages) {
  on_ranks(1, Dtype::float32, [](Rank& rank) {
    const auto tied = [&](int stages, int stage, const GptConfig& shape = config) {
      GptRanks ranks(rank, {.config = shape, .dtype = Dtype::float32, .stages = stages});
      std::vector<std::string> names;
      for (const collectives::Parameter* p : ranks.stage(stage).parameters())
        if (p->placement.tied_over_pp) names.push_back(p->name);
      return names;
    };
    const std::vector<std::string> table{"embedding.token.weight"};
    EXPECT_TRUE(tied(1, 0).empty());
    EXPECT_EQ(tied(4, 0), table);
    EXPECT_TRUE(tied(4, 1).empty());
    EXPECT_EQ(tied(4, 3), table);
    EXPECT_TRUE(tied(4, 0, llamas).empty());
    EXPECT_TRUE(tied(4, 3, llamas).empty());
  });
}

// Parameters that work on a rank's own rows between the regions have gradients that are sums over
// these rows. All other gradients are whole. Without sequence parallelism, all gradients are whole.
TEST(Declare, MarksGradientsPartialOverTp) {
  const std::set<std::string> of_gpt2{"embedding.position.weight",
                                      "blocks.0.norm1.gain",
                                      "blocks.0.norm1.bias",
                                      "blocks.0.attention.projection.bias",
                                      "blocks.0.norm2.gain",
                                      "blocks.0.norm2.bias",
                                      "blocks.0.mlp.fc2.bias",
                                      "head.norm.gain",
                                      "head.norm.bias"},
      of_llama{"blocks.0.norm1.gain", "blocks.0.norm2.gain", "head.norm.gain"};
  for (const bool sequence_parallel : {false, true}) {
    for (const auto& [shape, between] : {std::pair(config, of_gpt2), {llamas, of_llama}}) {
      on_ranks(2, Dtype::float32, [&](Rank& rank) {
        GptConfig one = shape;
        one.layers = 1;
        GptStage stage(one, rank.world.device(), rank.tp, Dtype::float32, {},
                       {.sequence_parallel = sequence_parallel});
        std::set<std::string> partial;
        for (const collectives::Parameter* p : stage.parameters())
          if (p->placement.gradient_partial_over_tp) partial.insert(p->name);
        EXPECT_EQ(partial, sequence_parallel ? between : std::set<std::string>{});
      });
    }
  }
}

}  // namespace
}  // namespace layers::testing
