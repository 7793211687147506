#pragma once
// The order in which host/flash_attention.cpp processes queries and keys: tiles of queries, each
// with one meeting of keys after another. A meeting has up to block_keys keys, which are the
// columns of a tile of scores.
//
// Without a layout, a meeting is a panel of keys. With a layout, a tile ends where its block of
// queries ends, so all its rows see the same blocks of keys. A panel whose blocks are all present
// is a meeting. The other present blocks are gathered: a meeting has several ranges of them.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "machine/device/host/tile.h"
#include "machine/device/kernels/functions.h"
#include "machine/device/sparse/block_lists.h"

namespace machine::host {

constexpr std::int64_t block_keys = 48;  // of a panel; a multiple of lanes for every type
constexpr std::int64_t tile_queries = 4 * tile_rows;  // with a panel, fits in the L1 cache
constexpr std::int64_t chunk = 16;                    // of keys; divides the blocks of a layout
static_assert(block_keys % tile_rows == 0 && block_keys % chunk == 0);
static_assert(chunk % lanes<float> == 0 && tile_queries % tile_rows == 0);

// Ranges of keys in ascending order, each within a panel. With a layout, they begin and end with
// chunks.
struct Meeting {
  struct Range {
    std::int64_t key, count, column;
  };
  std::array<Range, block_keys / chunk> ranges{};
  int size = 0;
  std::int64_t count = 0;  // keys of all ranges

  Meeting() = default;
  Meeting(std::int64_t key, std::int64_t keys) { add(key, keys); }
  void add(std::int64_t key, std::int64_t keys) {
    ranges[static_cast<std::size_t>(size++)] = {key, keys, count};
    count += keys;
  }
  const Range* begin() const { return ranges.data(); }
  const Range* end() const { return ranges.data() + size; }
};

// The mask of a sequence.
struct Mask {
  bool causal = true;
  std::int64_t length = 0;  // in keys

  Mask(const AttentionForward& call, std::int64_t sequence)
      : causal(call.options.causal),
        length(kernel::keys_of(call.options.lengths, sequence, call.k.rows)) {}
  // Returns the number of keys of a meeting that the query sees, which are its first columns.
  std::int64_t seen_by(std::int64_t query, const Meeting& meeting) const {
    const std::int64_t end = causal ? std::min(query + 1, length) : length;
    std::int64_t seen = 0;
    for (const Meeting::Range& range : meeting)
      seen += std::clamp<std::int64_t>(end - range.key, 0, range.count);
    return seen;
  }
};

struct Walk {
  std::int64_t queries, keys;
  const kernel::BlockLists* lists = nullptr;    // null: all keys
  std::atomic<std::int64_t>* scores = nullptr;  // with lists: adds the met pairs

  std::int64_t tile_end(std::int64_t begin) const {
    const std::int64_t end = std::min(begin + tile_queries, queries);
    return lists ? std::min(end, lists->block_end(begin)) : end;
  }

  // Calls meet(meeting) for the keys that a tile of a head meets.
  template <class Meet>
  void each_meeting(std::int64_t head, std::int64_t begin, std::int64_t count,
                    const Meet& meet) const {
    if (!lists)
      return each_panel(0, keys, [&](std::int64_t key, std::int64_t n) { meet(Meeting(key, n)); });
    std::int64_t met = 0;
    Meeting gathered;
    lists->each_run(head, begin / lists->block, [&](std::int64_t first, std::int64_t end) {
      met += end - first;
      each_panel(first, end, [&](std::int64_t key, std::int64_t n) {
        if (n == block_keys) return meet(Meeting(key, n));
        while (n > 0) {
          const std::int64_t some = std::min(n, block_keys - gathered.count);
          gathered.add(key, some);
          key += some;
          n -= some;
          if (gathered.count < block_keys) continue;
          meet(gathered);
          gathered = {};
        }
      });
    });
    if (gathered.count > 0) meet(gathered);
    scores->fetch_add(count * met, std::memory_order_relaxed);
  }

 private:
  template <class Visit>
  static void each_panel(std::int64_t first, std::int64_t end, const Visit& visit) {
    for (std::int64_t key = first, next; key < end; key = next) {
      next = std::min(end, (key / block_keys + 1) * block_keys);
      visit(key, next - key);
    }
  }
};

// Multiplies rows of a left operand by the first `columns` keys of a meeting, a multiple of lanes.
// panels: [panel][depth][block_keys].
template <class E, class A>
inline void multiply_keys(std::int64_t rows, Left<E> left, const E* panels, std::int64_t depth,
                          const Meeting& meeting, A* products, std::int64_t columns) {
  const auto at = [&](std::int64_t key) {
    return panels + (key - key % block_keys) * depth + key % block_keys;
  };
  if (meeting.size == 1)
    return multiply_rows<false>(rows, left, at(meeting.begin()->key), block_keys, depth, products,
                                block_keys, columns);
  const E* vectors[block_keys / lanes<A>];
  for (const Meeting::Range& range : meeting)
    for (std::int64_t c = 0; c < range.count; c += lanes<A>)
      vectors[(range.column + c) / lanes<A>] = at(range.key) + c;
  multiply_gathered(rows, left, vectors, block_keys, depth, products, block_keys,
                    static_cast<int>(columns / lanes<A>));
}

}  // namespace machine::host
