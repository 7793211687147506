#pragma once
// The blocks of DeepSpeed's sparse layouts without random blocks, as a rule for one block of
// queries and one of keys. layers/attention/sparse_layout.h adds ranges of blocks to a table
// instead.

#include <string>

namespace suite {

struct SparseRule {
  std::string pattern;  // DeepSpeed's mode
  bool unidirectional = false, horizontal_global_attention = false;
  int blocks = 1, num_local_blocks = 4, num_global_blocks = 1, num_sliding_window_blocks = 3;

  bool sees(int query, int key) const;
};

}  // namespace suite
