#pragma once
// The blocks of DeepSpeed's sparse layouts, as a rule for one block of queries and one of keys.
// layers/sparse/sparse_layout.h adds ranges of blocks to a table instead. Both draw the same random
// numbers.

#include <cstdint>
#include <string>
#include <vector>

namespace suite {

struct SparseRule {
  std::string pattern;  // DeepSpeed's mode
  bool unidirectional = false, horizontal_global_attention = false;
  int blocks = 1, num_local_blocks = 4, num_global_blocks = 1, num_sliding_window_blocks = 3;
  // The sizes of the windows of `variable`, of which the last repeats; empty: num_local_blocks.
  std::vector<int> windows{};
  // The ranges of global blocks of `variable` and `bslongformer`; without ends each has one block.
  std::vector<int> global_begins{0}, global_ends{};
  int num_different_global_patterns = 1;   // of `fixed`, over the heads
  bool different_layout_per_head = false;  // else all heads have the layout of head 0
  int num_random_blocks = 0;               // of a row of `variable` and `bigbird`
  std::uint64_t seed = 1;                  // of these

  bool sees(int query, int key, int head = 0) const;  // without random blocks
  // Returns [blocks of queries, blocks of keys] of a head, with random blocks.
  std::vector<bool> seen(int head) const;
};

}  // namespace suite
