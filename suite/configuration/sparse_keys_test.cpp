// DeepSpeed's block `sparse_attention`, and its flags.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "suite/configuration/resolve.h"
#include "suite/testing/file_case.h"

namespace suite::configuration {
namespace {

using layers::SparseMode;
using suite::testing::expect_words;
using suite::testing::Folder;
using suite::testing::write_bytes;

constexpr const char* model =
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 128 --vocab-size 64 ";

class SparseKeys : public ::testing::Test {
 protected:
  Resolved read(const std::string& block, const std::string& arguments = "") {
    const std::string path = folder_.path("ds_config.json");
    write_bytes(path, R"({"train_batch_size": 1, "sparse_attention": )" + block + "}");
    return resolve({.deepspeed_file = path, .words = words_of("words", model + arguments)});
  }
  std::string refusal(const std::string& block, const std::string& arguments = "") {
    try {
      read(block, arguments);
    } catch (const harness::UsageError& error) {
      EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos) << error.what();
      return error.what();
    }
    return "accepted";
  }
  static layers::SparseOptions given(const std::string& arguments) {
    return resolve({.words = words_of("words", model + arguments)}).config.model.sparse;
  }

 private:
  Folder folder_;
};

TEST_F(SparseKeys, HaveDeepSpeedsDefaults) {
  const TrainingConfig::Model fixed = read("{}").config.model;
  EXPECT_EQ(fixed.sparse.pattern.mode, SparseMode::fixed);
  EXPECT_EQ(fixed.sparse.block, 16);
  EXPECT_EQ(fixed.sparse_direction, "bidirectional");
  EXPECT_EQ(fixed.sparse.pattern.num_local_blocks, 4);
  EXPECT_EQ(fixed.sparse.pattern.num_global_blocks, 1);
  EXPECT_EQ(read(R"({"mode": "bigbird"})").config.model.sparse.pattern.num_random_blocks, 1);
  EXPECT_EQ(read(R"({"mode": "variable"})").config.model.sparse.pattern.random_blocks(), 0);
  for (const char* off : {"null", R"({"mode": "none"})"})
    EXPECT_FALSE(read(off).config.model.sparse.on()) << off;
}

// DeepSpeed's documentation has the first block.
TEST_F(SparseKeys, SetEveryMember) {
  const TrainingConfig::Model fixed =
      read(R"({"mode": "fixed", "block": 32, "different_layout_per_head": true,
               "num_local_blocks": 4, "num_global_blocks": 1, "attention": "unidirectional",
               "horizontal_global_attention": false, "num_different_global_patterns": 4})")
          .config.model;
  EXPECT_EQ(fixed.sparse.block, 32);
  EXPECT_TRUE(fixed.sparse.pattern.different_layout_per_head);
  EXPECT_EQ(fixed.sparse.pattern.num_different_global_patterns, 4);
  EXPECT_EQ(fixed.sparse_direction, "unidirectional");
  EXPECT_TRUE(fixed.sparse_options().pattern.unidirectional);
  const Resolved run =
      read(R"({"mode": "variable", "local_window_blocks": [4, 2], "num_random_blocks": 2,
               "global_block_indices": [0, 5], "global_block_end_indices": [1, 7]})");
  const layers::SparsePattern variable = run.config.model.sparse.pattern;
  EXPECT_EQ(variable.local_window_blocks, (std::vector{4, 2}));
  EXPECT_EQ(variable.global_block_indices, (std::vector{0, 5}));
  EXPECT_EQ(variable.global_block_end_indices, (std::vector{1, 7}));
  EXPECT_EQ(variable.random_blocks(), 2);
  expect_words(json(run), {"\"sparse_attention.local_window_blocks\"", "DeepSpeed's default"});
}

TEST_F(SparseKeys, AreFlags) {
  EXPECT_FALSE(given("").on());
  const layers::SparseOptions options = given(
      "--sparse-attention variable --sparse-attention-block 64 "
      "--sparse-attention-local-window-blocks 1+2 --sparse-attention-num-random-blocks 1 "
      "--sparse-attention-different-layout-per-head");
  EXPECT_EQ(options.pattern.mode, SparseMode::variable);
  EXPECT_EQ(options.block, 64);
  EXPECT_EQ(options.pattern.local_window_blocks, (std::vector{1, 2}));
  EXPECT_TRUE(options.pattern.different_layout_per_head);
  // The direction is the architecture's.
  const TrainingConfig encoder =
      resolve({.words = words_of("words", std::string(model) +
                                              "--architecture encoder --sparse-attention fixed")})
          .config;
  EXPECT_FALSE(encoder.model.sparse_options().pattern.unidirectional);
}

TEST_F(SparseKeys, WithoutEffectInAModeAreNamed) {
  const Resolved run =
      read(R"({"mode": "fixed", "num_random_blocks": 3, "attention": "unidirectional"})");
  ASSERT_EQ(run.warnings.size(), 1U);
  expect_words(run.warnings[0],
               {"sparse_attention.num_random_blocks", "sparse_attention.mode variable or bigbird"});
  EXPECT_EQ(run.config.model.sparse.pattern.num_random_blocks, std::nullopt);
}

TEST_F(SparseKeys, AreRejectedByName) {
  expect_words(refusal(R"({"mode": "fixd"})"), {"sparse_attention.mode is 'fixd'", "'fixed'"});
  expect_words(refusal("true"), {"sparse_attention is true; expected an object of keys"});
  expect_words(refusal(R"({"blocks": 16})"), {"unknown key 'sparse_attention.blocks'"});
  expect_words(refusal(R"({"block": 24})"), {"sparse_attention.block is 24", "multiple of 16"});
  expect_words(refusal(R"({"block": 48})"),
               {"seq-length is 128; expected a multiple of sparse_attention.block 48", "144"});
  expect_words(refusal(R"({"num_local_blocks": "four"})"),
               {"sparse_attention.num_local_blocks is 'four'; expected a whole number"});
  expect_words(refusal(R"({"num_local_blocks": 3, "num_global_blocks": 2})"),
               {"sparse_attention.num_global_blocks is 2; expected a divisor of 3"});
  expect_words(refusal(R"({"mode": "variable", "local_window_blocks": 4})"),
               {"sparse_attention.local_window_blocks is 4; expected a list of whole numbers"});
  expect_words(refusal(R"({"mode": "variable", "local_window_blocks": [4, 0.5]})"),
               {"sparse_attention.local_window_blocks is 0.5; expected"});
  expect_words(refusal(R"({"attention": "causal"})"), {"sparse_attention.attention is 'causal'"});
  expect_words(refusal("{}", "--architecture encoder-decoder --position-embedding-type relative"),
               {"sparse_attention requires architecture decoder or encoder"});
  expect_words(refusal(R"({"mode": "bigbird"})", "--sparse-attention fixed"),
               {"sparse_attention.mode is bigbird", "--sparse-attention is fixed"});
}

}  // namespace
}  // namespace suite::configuration
