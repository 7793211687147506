// Layouts of sparse attention, compared with drawings and with a second statement of each pattern,
// block by block.

#include "layers/sparse/sparse_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace layers {
namespace {

using enum SparseMode;

std::string drawing(const SparsePattern& pattern, int blocks, int head = 0) {
  const SparseLayout layout = sparse_layout(pattern, head + 1, blocks);
  std::string text;
  for (int q = 0; q < blocks; ++q) {
    for (int k = 0; k < blocks; ++k) text += layout.at(head, q, k) ? '#' : '.';
    text += ' ';
  }
  return text;
}

TEST(SparseLayout, EqualsTheDrawings) {
  EXPECT_EQ(drawing({.mode = fixed, .num_local_blocks = 2}, 5), "##.## ##.## .#### .#### .#.## ");
  EXPECT_EQ(drawing({.mode = fixed, .unidirectional = true, .num_local_blocks = 2}, 5),
            "#.... ##... .##.. .###. .#.## ");
  EXPECT_EQ(drawing({.mode = fixed,
                     .different_layout_per_head = true,
                     .unidirectional = true,
                     .num_local_blocks = 2,
                     .num_different_global_patterns = 2},
                    4, 1),
            "#... ##.. #.#. #.## ");
  EXPECT_EQ(
      drawing({.mode = variable, .local_window_blocks = {1, 2}, .global_block_indices = {4}}, 5),
      "#...# .##.# .##.# ...## ...## ");
  EXPECT_EQ(drawing({.horizontal_global_attention = true, .num_local_blocks = 2}, 4),
            "##.# #### .### #### ");
  EXPECT_EQ(drawing({.mode = bigbird, .num_random_blocks = 0}, 5),
            "##### ###.. ####. #.### #..## ");
  EXPECT_EQ(
      drawing({.mode = bslongformer, .global_block_indices = {2}, .global_block_end_indices = {4}},
              5),
      "####. ####. ##### ##### ..### ");
  EXPECT_EQ(drawing({.mode = local_sliding_window, .unidirectional = true}, 4),
            "#... ##.. .##. ..## ");
  EXPECT_EQ(drawing({.mode = dense, .unidirectional = true}, 3), "#.. ##. ### ");
}

TEST(SparseLayout, EqualsASecondStatement) {
  for (const int n : {1, 2, 5, 8, 13})
    for (const bool causal : {false, true})
      for (const SparseMode mode :
           {dense, fixed, variable, bigbird, bslongformer, local_sliding_window}) {
        const SparseLayout layout =
            sparse_layout({.mode = mode, .unidirectional = causal, .num_random_blocks = 0}, 2, n);
        for (int h = 0; h < 2; ++h)
          for (int q = 0; q < n; ++q)
            for (int k = 0; k < n; ++k) {
              const bool window = q / 4 == k / 4, near = std::abs(q - k) <= 1;
              bool expected = true;
              if (mode == fixed) expected = window || k % 4 == 3 || (n % 4 != 0 && k == n - 1);
              if (mode == variable) expected = window || k == 0;
              if (mode == bigbird || mode == bslongformer) expected = near || q == 0 || k == 0;
              if (mode == local_sliding_window) expected = near;
              EXPECT_EQ(layout.at(h, q, k), expected && (!causal || k <= q))
                  << n << ' ' << q << ' ' << k;
            }
      }
}

TEST(SparseLayout, DrawsDistinctRandomBlocksOfASeed) {
  SparsePattern pattern{
      .mode = variable, .different_layout_per_head = true, .num_random_blocks = 3};
  pattern.local_window_blocks = {1};
  pattern.global_block_indices = {};
  const SparseLayout layout = sparse_layout(pattern, 2, 16);
  EXPECT_EQ(layout.present, sparse_layout(pattern, 2, 16).present);
  for (int h = 0; h < 2; ++h)
    for (int q = 0; q < 16; ++q) {
      const auto row = layout.present.begin() + static_cast<std::ptrdiff_t>(layout.index(h, q, 0));
      const auto count =
          std::count(row, row + 16, 1) - 1;  // without the diagonal, which may be drawn
      EXPECT_TRUE(count == 3 || count == 2) << count;
    }
  EXPECT_FALSE(std::equal(layout.present.begin(), layout.present.begin() + 256,
                          layout.present.begin() + 256));
  pattern.num_random_blocks = 16;  // all are drawn, if none is drawn twice
  EXPECT_EQ(sparse_layout(pattern, 2, 16).density(), 1.0);
  pattern.num_random_blocks = 3;
  pattern.seed = 2;
  EXPECT_NE(layout.present, sparse_layout(pattern, 2, 16).present);
}

TEST(SparseLayout, HasTheDensityOfTheClosedForm) {
  EXPECT_EQ(sparse_layout({.mode = local_sliding_window}, 2, 16).density(), (3 * 16 - 2) / 256.0);
  EXPECT_EQ(sparse_layout({.mode = dense, .unidirectional = true}, 2, 16).density(), 17 / 32.0);
}

TEST(SparseLayout, RejectsKeysThatDoNotFit) {
  EXPECT_THROW(sparse_layout({.unidirectional = true, .horizontal_global_attention = true}, 1, 4),
               std::invalid_argument);
  EXPECT_THROW(sparse_layout({.num_global_blocks = 3}, 1, 4), std::invalid_argument);
  EXPECT_THROW(sparse_layout({.num_different_global_patterns = 2}, 1, 4), std::invalid_argument);
  EXPECT_THROW(sparse_layout({.num_random_blocks = 5}, 1, 4), std::invalid_argument);
  EXPECT_NO_THROW(validate({}, 32, 8192));
  EXPECT_THROW(validate({}, 32, 8193), std::invalid_argument);
  EXPECT_THROW(sparse_layout({.global_block_end_indices = {0}}, 1, 4), std::invalid_argument);
}

}  // namespace
}  // namespace layers
