#include "suite/configuration/models.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "layers/models/gpt_cost.h"

namespace suite {
namespace {

TEST(NamedModel, LlamaTwoHasThePublishedShape) {
  TrainingConfig config;
  set_model(config, "llama2_7b");
  EXPECT_EQ(layers::parameters_count(config.model), 6'738'415'616);  // Touvron et al. 2023
  EXPECT_THROW(set_model(config, "llama2_8b"), std::invalid_argument);
}

TEST(NamedModel, GptTwoHasThePublishedShapeAndAPaddedTable) {
  TrainingConfig config;
  config.model.seq_length = 256;
  set_model(config, "gpt2_124m");
  EXPECT_EQ(config.model.tokens, 50257);
  EXPECT_EQ(config.model.vocabulary, 50304);
  EXPECT_EQ(config.model.sequence, 256);
  // Radford et al. 2019: 124,439,808 parameters with 1024 positions. 47 rows are padding.
  config.model.seq_length.reset();
  set_model(config, "gpt2_124m");
  EXPECT_EQ(layers::parameters_count(config.model), 124'439'808 + 47 * 768);
  set_model(config, "gpt2_1558m");
  EXPECT_EQ(layers::parameters_count(config.model), 1'557'611'200 + 47 * 1600);
}

TEST(NamedModel, VocabularyPaddingMatchesMegatron) {
  TrainingConfig::Model model;
  const auto padded = [&](int tokens, int tp) {
    model.tokens = tokens;
    return padded_vocabulary(model, tp);
  };
  EXPECT_EQ(padded(50257, 1), 50304);
  EXPECT_EQ(padded(50257, 2), 50432);
  EXPECT_EQ(padded(50257, 4), 50688);
  EXPECT_EQ(padded(256, 4), 256);
  model.make_vocab_size_divisible_by = 128;
  EXPECT_EQ(padded(256, 4), 512);
  model.make_vocab_size_divisible_by = 1;
  EXPECT_EQ(padded(50257, 1), 50257);
  EXPECT_EQ(padded(50257, 2), 50258);
  model.make_vocab_size_divisible_by = 10'000'000;
  EXPECT_THROW(padded(50257, 1000), std::invalid_argument);
}

}  // namespace
}  // namespace suite
