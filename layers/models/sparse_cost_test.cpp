// Operations of a model with a sparse layout, counted pair by pair.

#include <gtest/gtest.h>

#include "layers/models/gpt_cost.h"

namespace layers {
namespace {

GptConfig model_of(Architecture architecture, const SparseOptions& sparse) {
  return {.layers = 3,
          .hidden = 8,
          .heads = 2,
          .vocabulary = 32,
          .sequence = 96,
          .architecture = architecture,
          .sparse = sparse};
}

// Returns the pairs that attention has in a layer for each column of a head, on average over heads.
double pairs(Architecture architecture, const SparseOptions& sparse) {
  GptConfig config = model_of(architecture, sparse);
  const double with = model_flops(config, config.sequence);
  config.layers *= 2;
  const double more = model_flops(config, config.sequence) - with;
  const double h = config.hidden, weights = 12 * h * h * config.sequence;
  return (more / 6 / 3 - weights) / (2 * h);
}

// Drawn as six blocks of queries in six of keys. Half of a causal block on the diagonal counts.
TEST(SparseCost, CountsThePairsOfPresentBlocks) {
  const SparsePattern fixed{.mode = SparseMode::fixed, .num_local_blocks = 2};
  // #.... ##... .##.. .###. .#.##  and the last window: #.....: 1 2 2 3 3 4 blocks
  EXPECT_EQ(pairs(Architecture::decoder, {fixed, 16}), (1 + 2 + 2 + 3 + 3 + 4 - 6 / 2.0) * 256);
  // Its globals 1, 3 and 5 are columns: four blocks in each row.
  EXPECT_EQ(pairs(Architecture::encoder, {fixed, 16}), 6 * 4 * 256);
  const SparsePattern sliding{.mode = SparseMode::local_sliding_window};
  EXPECT_EQ(pairs(Architecture::encoder, {sliding, 16}), (2 + 3 + 3 + 3 + 3 + 2) * 256);
  EXPECT_EQ(pairs(Architecture::decoder, {sliding, 32}), (1 + 2 + 2 - 3 / 2.0) * 1024);
}

// A mean over the heads, whose rows draw different numbers of blocks that the window lacks.
TEST(SparseCost, CountsTheBlocksOfAllHeads) {
  SparsePattern random{.mode = SparseMode::variable,
                       .different_layout_per_head = true,
                       .unidirectional = true,
                       .num_random_blocks = 2,
                       .local_window_blocks = {1}};
  const SparseLayout layout = sparse_layout(random, 2, 6);
  int present[2] = {};
  for (int head = 0; head < 2; ++head)
    for (int q = 0; q < 6; ++q)
      for (int k = 0; k < 6; ++k) present[head] += layout.at(head, q, k);
  EXPECT_NE(present[0], present[1]);
  EXPECT_EQ(pairs(Architecture::decoder, {random, 16}),
            ((present[0] + present[1]) / 2.0 - 6 / 2.0) * 256);
}

TEST(SparseCost, IsThatOfDenseAttentionIfAllBlocksArePresent) {
  for (const Architecture architecture : {Architecture::decoder, Architecture::encoder}) {
    const SparseOptions none{.pattern = {.mode = SparseMode::none}},
        all{.pattern = {.mode = SparseMode::dense}};
    EXPECT_EQ(pairs(architecture, all), pairs(architecture, none));
    EXPECT_EQ(pairs(architecture, none),
              (architecture == Architecture::encoder ? 1 : 0.5) * 96 * 96);
  }
}

}  // namespace
}  // namespace layers
