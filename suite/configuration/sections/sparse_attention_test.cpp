#include "suite/configuration/sections/sparse_attention.h"

#include <gtest/gtest.h>

#include "machine/base/error.h"

namespace suite::configuration {
namespace {

std::string flags(const std::string& block) {
  return sparse_attention_flags("ds.json",
                                leaves_of("ds.json", R"({"sparse_attention": )" + block + "}"));
}
std::string refusal(const std::string& block) {
  try {
    flags(block);
  } catch (const machine::UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(SparseAttentionBlock, GivesTheFlagsOfTheUnit) {
  EXPECT_EQ(flags("{}"),
            "--pattern fixed --block 16 --attention bidirectional --num_local_blocks 4 "
            "--num_global_blocks 1");
  // DeepSpeed's documentation has this block.
  EXPECT_EQ(flags(R"({"mode": "fixed", "block": 16, "different_layout_per_head": true,
                      "num_local_blocks": 4, "num_global_blocks": 1, "attention": "bidirectional",
                      "horizontal_global_attention": false, "num_different_global_patterns": 1})"),
            "--pattern fixed --block 16 --different_layout_per_head on --attention bidirectional "
            "--num_local_blocks 4 --num_global_blocks 1");
  EXPECT_EQ(flags(R"({"mode": "variable", "local_window_blocks": [8], "num_random_blocks": 2,
                      "attention": "unidirectional", "global_block_indices": [0],
                      "global_block_end_indices": null})"),
            "--pattern variable --block 16 --attention unidirectional --num_random_blocks 2 "
            "--num_local_blocks 8");
  EXPECT_EQ(flags(R"({"mode": "bigbird", "block": 64})"),
            "--pattern bigbird --block 64 --attention bidirectional --num_global_blocks 1 "
            "--num_random_blocks 1 --num_sliding_window_blocks 3");
  EXPECT_EQ(flags(R"({"mode": "dense"})"), "--pattern dense --block 16");
}

TEST(SparseAttentionBlock, RejectsKeysAndValuesByName) {
  EXPECT_EQ(refusal(R"({"mode": "fixd"})"),
            "ds.json: sparse_attention.mode is 'fixd'; expected dense, fixed, variable, bigbird, "
            "bslongformer, local_sliding_window");
  EXPECT_EQ(refusal(R"({"block": 24})"),
            "ds.json: sparse_attention.block is 24; expected 16, 32, 64 or 128");
  EXPECT_EQ(refusal(R"({"num_local_blocks": "four"})"),
            "ds.json: sparse_attention.num_local_blocks is 'four'; expected a whole number");
  EXPECT_EQ(refusal(R"({"num_random_blocks": 1})").substr(0, 76),
            "ds.json: unknown key of sparse_attention in mode fixed 'num_random_blocks'; ");
  EXPECT_EQ(refusal(R"({"num_different_global_patterns": 4})"),
            "ds.json: sparse_attention.num_different_global_patterns is 4; expected 1: heads have "
            "one pattern here");
  EXPECT_EQ(refusal(R"({"mode": "variable", "local_window_blocks": [4, 2]})"),
            "ds.json: sparse_attention.local_window_blocks is [4, 2]; expected one "
            "size: windows have one size here, num_local_blocks");
  EXPECT_EQ(refusal(R"({"mode": "bslongformer", "global_block_indices": [0, 7]})"),
            "ds.json: sparse_attention.global_block_indices is [0, 7]; expected 0: "
            "the first block is the only global one here");
  EXPECT_EQ(refusal(R"({"different_layout_per_head": 1})"),
            "ds.json: sparse_attention.different_layout_per_head is 1; expected true or false");
  EXPECT_EQ(refusal(R"({"attention": "causal"})"),
            "ds.json: sparse_attention.attention is 'causal'; expected unidirectional, "
            "bidirectional");
}

}  // namespace
}  // namespace suite::configuration
