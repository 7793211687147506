#include "suite/reference/attention/sparse_rule.h"

#include <cstdlib>

namespace suite {

bool SparseRule::sees(int query, int key) const {
  if (unidirectional && key > query) return false;
  const bool window = query / num_local_blocks == key / num_local_blocks,
             near = 2 * std::abs(query - key) <= num_sliding_window_blocks;
  const auto either = [&](const auto& is_global, bool rows_too) {
    return is_global(key) || (rows_too && is_global(query));
  };
  const auto first = [](int block) { return block == 0; };
  const auto first_ones = [&](int block) { return block < num_global_blocks; };
  // The last blocks of each window, and of a short window the last blocks of the sequence.
  const auto representing = [&](int block) {
    const int from = blocks % num_local_blocks != 0 ? blocks - num_global_blocks : blocks;
    return block % num_local_blocks >= num_local_blocks - num_global_blocks || block >= from;
  };
  if (pattern == "fixed") return window || either(representing, horizontal_global_attention);
  if (pattern == "variable") return window || either(first, horizontal_global_attention);
  if (pattern == "bigbird") return near || either(first_ones, true);
  if (pattern == "bslongformer") return near || either(first, true);
  if (pattern == "local_sliding_window") return near;
  return true;
}

}  // namespace suite
