#pragma once
// Layouts of block-sparse attention: a pure function of a pattern, heads and blocks. A layout is
// data; it computes nothing. Patterns and keys are those of DeepSpeed's `sparse_attention` block:
//
//   fixed                 Child et al. 2019, arXiv:1904.10509, with DeepSpeed's global blocks
//   variable              fixed with windows of any sizes, chosen global blocks and random blocks
//   bigbird               Zaheer et al. 2020, arXiv:2007.14062
//   bslongformer          Beltagy et al. 2020, arXiv:2004.05150, in blocks
//   local_sliding_window  a window around the diagonal
//
//   const SparseLayout layout = sparse_layout({.mode = SparseMode::fixed}, heads, sequence / 16);
//
// Differences from DeepSpeed:
// - A unidirectional layout has no block above the diagonal. DeepSpeed keeps some there (fixed with
//   more than one global block, random blocks of variable).
// - Random blocks are keyed by seed, head and row, so all ranks agree. Rows with fewer blocks than
//   random ones draw all of them. DeepSpeed draws without a seed and rejects such rows.
// - Windows may be longer than the sequence.
// - No default but that of num_random_blocks depends on the mode. In DeepSpeed,
//   local_sliding_window is unidirectional.
//
// Source: deepspeed/ops/sparse_attention/sparsity_config.py.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace layers {

enum class SparseMode : unsigned char {
  none,  // no layout
  dense,
  fixed,
  variable,
  bigbird,
  bslongformer,
  local_sliding_window
};
std::string_view name(SparseMode mode);         // DeepSpeed's
SparseMode sparse_mode(std::string_view text);  // throws std::invalid_argument

struct SparsePattern {
  SparseMode mode = SparseMode::fixed;
  bool different_layout_per_head = false;
  bool unidirectional = false;
  bool horizontal_global_attention = false;  // fixed and variable
  int num_local_blocks = 4;                  // fixed
  int num_global_blocks = 1;                 // fixed and bigbird
  int num_different_global_patterns = 1;     // fixed
  // A row; variable and bigbird. Empty: 1 in bigbird, 0 in variable.
  std::optional<int> num_random_blocks = {};
  int num_sliding_window_blocks = 3;
  std::vector<int> local_window_blocks = {4};  // variable; the last size repeats
  std::vector<int> global_block_indices = {0};
  std::vector<int> global_block_end_indices = {};  // empty: each global range has one block
  std::uint64_t seed = 1;

  int random_blocks() const { return num_random_blocks.value_or(mode == SparseMode::bigbird); }
};

// The core attention of a layer with a layout, in place of the blockwise kernel.
struct SparseOptions {
  SparsePattern pattern{};
  int block = 16;  // tokens; a multiple of 16 that divides the sequence

  bool on() const { return pattern.mode != SparseMode::none; }
};

struct SparseLayout {
  int heads = 0, blocks = 0;
  std::vector<std::uint8_t> present;  // [heads, blocks of queries, blocks of keys]

  bool at(int head, int query, int key) const { return present[index(head, query, key)] != 0; }
  std::size_t index(int head, int query, int key) const {
    return (static_cast<std::size_t>(head) * blocks + query) * blocks + key;
  }
  double density() const;
};

// Throws std::invalid_argument for keys that do not fit.
void validate(const SparsePattern& pattern, int heads, int blocks);
// Throws like validate. Every pattern has the diagonal, so no row is empty.
SparseLayout sparse_layout(const SparsePattern& pattern, int heads, int blocks);

}  // namespace layers
