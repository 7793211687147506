#include "suite/reference/attention/sparse_rule.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include "machine/device/random.h"

namespace suite {
namespace {

// Returns the first block of the window of a block.
int window_of(const SparseRule& rule, int block) {
  int begin = 0;
  for (std::size_t i = 0;; ++i) {
    const int size = rule.windows.empty() ? rule.num_local_blocks
                                          : rule.windows[std::min(i, rule.windows.size() - 1)];
    if (block < begin + size) return begin;
    begin += size;
  }
}

}  // namespace

bool SparseRule::sees(int query, int key, int head) const {
  if (unidirectional && key > query) return false;
  const bool near = 2 * std::abs(query - key) <= num_sliding_window_blocks;
  const auto in_window = [&] { return window_of(*this, query) == window_of(*this, key); };
  const auto either = [&](const auto& is_global, bool rows_too) {
    return is_global(key) || (rows_too && is_global(query));
  };
  const auto chosen = [&](int block) {
    for (std::size_t i = 0; i < global_begins.size(); ++i)
      if (global_ends.empty() ? block == global_begins[i]
                              : block >= global_begins[i] && block < global_ends[i])
        return true;
    return false;
  };
  const auto first_ones = [&](int block) { return block < num_global_blocks; };
  // The last blocks of each window, or earlier ones in other heads, represent it. Those of a short
  // window are at most the last blocks of the sequence.
  const auto representing = [&](int block) {
    const int pattern_of_head =
        different_layout_per_head ? head % num_different_global_patterns : 0;
    const int place = num_local_blocks - (pattern_of_head + 1) * num_global_blocks;
    for (int window = 0; window < blocks; window += num_local_blocks) {
      const int distance = block - std::min(window + place, blocks - num_global_blocks);
      if (distance >= 0 && distance < num_global_blocks) return true;
    }
    return false;
  };
  if (pattern == "fixed") return in_window() || either(representing, horizontal_global_attention);
  if (pattern == "variable") return in_window() || either(chosen, horizontal_global_attention);
  if (pattern == "bigbird") return near || either(first_ones, true);
  if (pattern == "bslongformer") return near || either(chosen, true);
  if (pattern == "local_sliding_window") return near;
  return true;
}

std::vector<bool> SparseRule::seen(int head) const {
  const int of = different_layout_per_head ? head : 0;
  std::vector<bool> all;
  const std::uint64_t key = machine::random_key(seed, "sparse_attention");
  for (int q = 0; q < blocks; ++q) {
    const std::size_t row = all.size();
    for (int k = 0; k < blocks; ++k) all.push_back(sees(q, k, of));
    if (pattern != "variable" && pattern != "bigbird") continue;
    // Draws without replacement: a drawn place gets the block that the end of the drawn ones had.
    const int choices = unidirectional ? q + 1 : blocks;
    std::map<int, int> moved;
    const auto block_at = [&](int place) {
      const auto found = moved.find(place);
      return found == moved.end() ? place : found->second;
    };
    for (int i = 0; i < std::min(num_random_blocks, choices); ++i) {
      const auto index = static_cast<std::uint64_t>((of * blocks + q) * blocks + i);
      const int place = i + static_cast<int>(machine::uniform(key, index) * (choices - i));
      all[row + static_cast<std::size_t>(block_at(place))] = true;
      moved[place] = block_at(i);
    }
  }
  return all;
}

}  // namespace suite
