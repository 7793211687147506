#include "layers/sparse/sparse_layout.h"

#include <algorithm>
#include <numeric>

#include "machine/base/names.h"
#include "machine/base/reject.h"
#include "machine/device/random.h"

namespace layers {

void validate(const SparsePattern& p, int heads, int blocks) {
  using machine::check_positive;
  using machine::reject;
  check_positive("heads", heads);
  check_positive("blocks", blocks);
  // A layout has a byte for each pair of blocks.
  constexpr double most_gib = 2;
  if (const double gib = 1.0 * heads * blocks * blocks / 0x1p30; gib > most_gib)
    reject(
        "sparse_attention has {} heads of {} x {} blocks, a layout of {:.1f} GiB; expected at "
        "most {:.0f} GiB; use a larger block",
        heads, blocks, blocks, gib, most_gib);
  check_positive("num_local_blocks", p.num_local_blocks);
  check_positive("num_global_blocks", p.num_global_blocks);
  check_positive("num_different_global_patterns", p.num_different_global_patterns);
  check_positive("num_sliding_window_blocks", p.num_sliding_window_blocks);
  if (p.local_window_blocks.empty())
    reject("local_window_blocks is empty; expected one size or more");
  for (const int size : p.local_window_blocks) check_positive("local_window_blocks", size);
  if (p.random_blocks() < 0 || p.random_blocks() > blocks)
    reject("num_random_blocks is {}; expected 0 to {}", p.random_blocks(), blocks);
  for (const int index : p.global_block_indices)
    if (index < 0) reject("global_block_indices has {}; expected 0 or more", index);
  if (p.horizontal_global_attention && p.unidirectional)
    reject("horizontal_global_attention requires attention bidirectional (got unidirectional)");
  const auto& ends = p.global_block_end_indices;
  if (!ends.empty() && ends.size() != p.global_block_indices.size())
    reject("global_block_end_indices has {} values; expected {}", ends.size(),
           p.global_block_indices.size());
  for (std::size_t i = 0; i < ends.size(); ++i)
    if (ends[i] <= p.global_block_indices[i])
      reject("global_block_end_indices has {}; expected more than {}", ends[i],
             p.global_block_indices[i]);
  if ((p.mode == SparseMode::fixed || p.mode == SparseMode::bigbird) &&
      p.num_global_blocks > blocks)
    reject("num_global_blocks is {}; expected at most {}", p.num_global_blocks, blocks);
  if (p.mode != SparseMode::fixed) return;
  if (p.num_local_blocks % p.num_global_blocks != 0)
    reject("num_global_blocks is {}; expected a divisor of {}", p.num_global_blocks,
           p.num_local_blocks);
  if (p.num_different_global_patterns > p.num_local_blocks / p.num_global_blocks)
    reject("num_different_global_patterns is {}; expected at most {}",
           p.num_different_global_patterns, p.num_local_blocks / p.num_global_blocks);
  if (p.num_different_global_patterns > 1 && !p.different_layout_per_head)
    reject("num_different_global_patterns requires different_layout_per_head true (got false)");
}

namespace {

// Adds the blocks of one head.
class Head {
 public:
  Head(const SparsePattern& pattern, SparseLayout& layout, int head)
      : p_(pattern), layout_(layout), head_(head), blocks_(layout.blocks) {}

  void fill() {
    switch (p_.mode) {
      case SparseMode::none:
        machine::reject("mode is none; expected a pattern");
      case SparseMode::dense:
        add(0, blocks_, 0, blocks_);
        break;
      case SparseMode::fixed:
        windows({p_.num_local_blocks}), fixed_globals();
        break;
      case SparseMode::variable:
        random(), windows(p_.local_window_blocks), chosen_globals(p_.horizontal_global_attention);
        break;
      case SparseMode::bigbird:
        random(), slide(), globals(0, p_.num_global_blocks, true);
        break;
      case SparseMode::bslongformer:
        slide(), chosen_globals(true);
        break;
      case SparseMode::local_sliding_window:
        slide();
        break;
    }
  }

 private:
  void add(int row, int rows_end, int first, int end) {
    for (int q = std::max(row, 0); q < std::min(rows_end, blocks_); ++q)
      for (int k = std::max(first, 0); k < std::min(end, p_.unidirectional ? q + 1 : blocks_); ++k)
        if (k < blocks_) layout_.present[layout_.index(head_, q, k)] = 1;
  }
  void globals(int first, int end, bool horizontal) {
    add(0, blocks_, first, end);
    if (horizontal) add(first, end, 0, blocks_);
  }
  void windows(const std::vector<int>& sizes) {
    std::size_t i = 0;
    for (int first = 0; first < blocks_;) {
      const int size = sizes[std::min(i++, sizes.size() - 1)];
      add(first, first + size, first, first + size);
      first += size;
    }
  }
  void slide() {
    const int reach = p_.num_sliding_window_blocks / 2;
    for (int q = 0; q < blocks_; ++q) add(q, q + 1, q - reach, q + reach + 1);
  }
  // The last blocks of each window represent it, other patterns take earlier ones. A short window
  // at the end takes the same place, or the last blocks of the sequence if that place is behind
  // them.
  void fixed_globals() {
    const int size = p_.num_global_blocks;
    const int place = p_.num_local_blocks - (1 + head_ % p_.num_different_global_patterns) * size;
    for (int window = 0; window < blocks_; window += p_.num_local_blocks) {
      const int first = std::min(window + place, blocks_ - size);
      globals(first, first + size, p_.horizontal_global_attention);
    }
  }
  void chosen_globals(bool horizontal) {
    for (std::size_t i = 0; i < p_.global_block_indices.size(); ++i) {
      const int first = p_.global_block_indices[i];
      globals(first,
              p_.global_block_end_indices.empty() ? first + 1 : p_.global_block_end_indices[i],
              horizontal);
    }
  }
  // Draws distinct blocks (the start of a Fisher-Yates shuffle); unidirectional rows draw up to the
  // diagonal.
  void random() {
    const std::uint64_t key = machine::random_key(p_.seed, "sparse_attention");
    for (int q = 0; q < blocks_; ++q) {
      std::vector<int> keys(p_.unidirectional ? q + 1 : blocks_);
      std::iota(keys.begin(), keys.end(), 0);
      const int count = std::min<int>(p_.random_blocks(), static_cast<int>(keys.size()));
      for (int i = 0; i < count; ++i) {
        const double draw = machine::uniform(key, layout_.index(head_, q, i));
        std::swap(keys[i], keys[i + static_cast<int>(draw * static_cast<double>(keys.size() - i))]);
        add(q, q + 1, keys[i], keys[i] + 1);
      }
    }
  }

  const SparsePattern& p_;
  SparseLayout& layout_;
  int head_, blocks_;
};

}  // namespace

std::string_view name(SparseMode mode) {
  constexpr std::string_view names[] = {
      "none", "dense", "fixed", "variable", "bigbird", "bslongformer", "local_sliding_window"};
  return names[static_cast<std::size_t>(mode)];
}

SparseMode sparse_mode(std::string_view text) {
  using enum SparseMode;
  return machine::named(
      "mode of sparse attention", text,
      {none, dense, fixed, variable, bigbird, bslongformer, local_sliding_window});
}

double SparseLayout::density() const {
  return static_cast<double>(std::count(present.begin(), present.end(), 1)) /
         static_cast<double>(present.size());
}

SparseLayout sparse_layout(const SparsePattern& pattern, int heads, int blocks) {
  validate(pattern, heads, blocks);
  SparseLayout layout{heads, blocks,
                      std::vector<std::uint8_t>(static_cast<std::size_t>(heads) * blocks * blocks)};
  for (int head = 0; head < heads; ++head) {
    if (head == 0 || pattern.different_layout_per_head)
      Head(pattern, layout, head).fill();
    else
      std::copy_n(layout.present.begin(), layout.index(1, 0, 0),
                  layout.present.begin() + layout.index(head, 0, 0));
  }
  return layout;
}

}  // namespace layers
