#include "layers/gpt_config.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace layers {
namespace {

std::string refusal(const GptConfig& config, int tp = 1, int pp = 1) {
  try {
    config.validate(tp, pp);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

const GptConfig config{.layers = 6, .hidden = 48, .heads = 12, .vocabulary = 200, .sequence = 8};

TEST(GptConfig, AcceptsWhatDivides) {
  EXPECT_EQ(refusal(config), "accepted");
  EXPECT_EQ(refusal(config, 4, 3), "accepted");
}

TEST(GptConfig, NamesKeyValuesAndTheNearestValid) {
  EXPECT_EQ(refusal(config, 5),
            "tp is 5: it must divide heads, which is 12; the nearest degree that divides heads and "
            "vocabulary is 4");
  EXPECT_EQ(refusal(config, 3),
            "tp is 3: it must divide vocabulary, which is 200; pad vocabulary to 201, or use tp 2, "
            "the nearest degree that divides heads and vocabulary");
  EXPECT_EQ(refusal(config, 1, 4),
            "pp is 4: it must divide layers, which is 6; the nearest that does is 3");
  GptConfig odd = config;
  odd.heads = 7;
  EXPECT_EQ(refusal(odd),
            "heads is 7: it must divide hidden, which is 48; the nearest that does is 6");
  odd = config;
  odd.sequence = 0;
  EXPECT_EQ(refusal(odd), "sequence is 0: it must be greater than 0");
  odd = config;
  odd.layer_norm_epsilon = -1;
  EXPECT_EQ(refusal(odd), "layer_norm_epsilon is -1: it must be greater than 0");
  EXPECT_EQ(refusal(config, 0), "tp is 0: it must be greater than 0");
}

}  // namespace
}  // namespace layers
