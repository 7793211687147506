// The reference's rule of sparse layouts has the blocks of the layouts that layers compute with.
// The two are stated differently: the rule says of one pair whether it is seen.

#include "suite/reference/attention/sparse_rule.h"

#include <gtest/gtest.h>

#include "layers/sparse/sparse_layout.h"

namespace suite {
namespace {

using layers::SparseMode, layers::SparsePattern;

SparseRule rule_of(const SparsePattern& p, int blocks) {
  return {.pattern = std::string(name(p.mode)),
          .unidirectional = p.unidirectional,
          .horizontal_global_attention = p.horizontal_global_attention,
          .blocks = blocks,
          .num_local_blocks = p.num_local_blocks,
          .num_global_blocks = p.num_global_blocks,
          .num_sliding_window_blocks = p.num_sliding_window_blocks,
          .windows = p.mode == SparseMode::variable ? p.local_window_blocks : std::vector<int>(),
          .global_begins = p.global_block_indices,
          .global_ends = p.global_block_end_indices,
          .num_different_global_patterns = p.num_different_global_patterns,
          .different_layout_per_head = p.different_layout_per_head,
          .num_random_blocks = p.random_blocks(),
          .seed = p.seed};
}

void expect_equal(SparsePattern pattern) {
  constexpr int heads = 5;
  for (const bool causal : {false, true})
    for (const bool of_heads : {false, true})
      for (const int blocks : {4, 6, 9, 13}) {
        if (pattern.num_different_global_patterns > 1 && !of_heads) continue;
        if (pattern.horizontal_global_attention && causal) continue;
        pattern.unidirectional = causal;
        pattern.different_layout_per_head = of_heads;
        const layers::SparseLayout layout = sparse_layout(pattern, heads, blocks);
        for (int head = 0; head < heads; ++head) {
          const std::vector<bool> seen = rule_of(pattern, blocks).seen(head);
          for (int q = 0; q < blocks; ++q)
            for (int k = 0; k < blocks; ++k)
              ASSERT_EQ(seen[static_cast<std::size_t>(q * blocks + k)], layout.at(head, q, k))
                  << name(pattern.mode) << ", " << blocks << " blocks, head " << head << ", row "
                  << q << ", block " << k;
        }
      }
}

TEST(SparseRule, HasTheBlocksOfTheLayout) {
  expect_equal({.mode = SparseMode::dense});
  for (const int local : {2, 4, 6})
    for (const int patterns : {1, 2})
      for (const bool horizontal : {false, true})
        expect_equal({.mode = SparseMode::fixed,
                      .horizontal_global_attention = horizontal,
                      .num_local_blocks = local,
                      .num_different_global_patterns = patterns});
  expect_equal({.mode = SparseMode::fixed,
                .num_local_blocks = 4,
                .num_global_blocks = 2,
                .num_different_global_patterns = 2});
  for (const int random : {0, 1, 4})
    expect_equal({.mode = SparseMode::variable,
                  .num_random_blocks = random,
                  .local_window_blocks = {1, 3, 2},
                  .global_block_indices = {0, 5},
                  .global_block_end_indices = {1, 8}});
  expect_equal({.mode = SparseMode::variable, .horizontal_global_attention = true});
  for (const int window : {1, 3, 4})
    for (const SparseMode mode :
         {SparseMode::bigbird, SparseMode::bslongformer, SparseMode::local_sliding_window})
      expect_equal(
          {.mode = mode, .num_sliding_window_blocks = window, .global_block_indices = {2}});
}

}  // namespace
}  // namespace suite
