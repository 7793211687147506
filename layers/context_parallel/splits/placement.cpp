#include "layers/context_parallel/splits/placement.h"

#include <algorithm>
#include <cstddef>

#include "collectives/plan.h"
#include "machine/base/error.h"

namespace layers {

using collectives::part_of;

std::string_view name(SequenceOrder order) {
  constexpr std::string_view names[] = {"contiguous", "striped", "zigzag"};
  return names[static_cast<std::size_t>(order)];
}

std::int64_t Tile::pairs() const {
  if (!causal) return queries * keys;
  const std::int64_t partial = std::min(queries, keys);  // queries that do not see all keys
  return partial * (partial + 1) / 2 + (queries - partial) * keys;
}

std::int64_t SequencePlacement::chunk(int index) const {
  return part_of(sequence, 2 * ranks, index).size();
}

std::int64_t SequencePlacement::chunk_begin(int index) const {
  return part_of(sequence, 2 * ranks, index).begin;
}

std::int64_t SequencePlacement::rows(int rank) const {
  if (inner > 1) return part_of(outer().rows(rank / inner), inner, rank % inner).size();
  if (order == SequenceOrder::zigzag) return chunk(rank) + chunk(2 * ranks - 1 - rank);
  return part_of(sequence, ranks, rank).size();  // the same number for stripes
}

std::int64_t SequencePlacement::most_rows() const {
  std::int64_t most = 0;
  for (int rank = 0; rank < ranks; ++rank) most = std::max(most, rows(rank));
  return most;
}

std::vector<Segment> SequencePlacement::segments(int rank) const {
  std::vector<Segment> all;
  if (inner > 1) {
    const auto own = part_of(outer().rows(rank / inner), inner, rank % inner);
    for (const Segment& whole : outer().segments(rank / inner)) {
      const std::int64_t begin = std::max(own.begin, whole.local),
                         end = std::min(own.begin + own.size(), whole.local + whole.count);
      if (begin < end)
        all.push_back({begin - own.begin, whole.global + (begin - whole.local) * whole.stride,
                       end - begin, whole.stride});
    }
    return all;
  }
  switch (order) {
    case SequenceOrder::contiguous:
      all = {{0, part_of(sequence, ranks, rank).begin, rows(rank), 1}};
      break;
    case SequenceOrder::striped:
      all = {{0, rank, rows(rank), ranks}};
      break;
    case SequenceOrder::zigzag: {
      const int second = 2 * ranks - 1 - rank;
      all = {{0, chunk_begin(rank), chunk(rank), 1},
             {chunk(rank), chunk_begin(second), chunk(second), 1}};
      break;
    }
  }
  std::erase_if(all, [](const Segment& segment) { return segment.count == 0; });
  return all;
}

std::int64_t SequencePlacement::position(int rank, std::int64_t row) const {
  for (const Segment& segment : segments(rank))
    if (row < segment.local + segment.count)
      return segment.global + (row - segment.local) * segment.stride;
  SHARDMARK_CHECK(row, <, rows(rank));
  return -1;
}

RankRow SequencePlacement::place(std::int64_t position) const {
  for (int rank = 0; rank < ranks; ++rank)
    for (const Segment& segment : segments(rank)) {
      const std::int64_t past = position - segment.global;
      if (past >= 0 && past % segment.stride == 0 && past / segment.stride < segment.count)
        return {rank, segment.local + past / segment.stride};
    }
  SHARDMARK_CHECK(position, <, sequence);
  return {-1, -1};
}

std::optional<Tile> SequencePlacement::tile(int query_rank, int key_rank, bool causal) const {
  SHARDMARK_CHECK(inner, ==, 1);
  const std::int64_t queries = rows(query_rank), keys = rows(key_rank);
  Tile tile{0, queries, 0, keys, false};
  if (causal) {
    const bool earlier = key_rank < query_rank;
    if (key_rank == query_rank) {
      tile.causal = true;  // rows are in the order of their positions
    } else if (order == SequenceOrder::contiguous) {
      if (!earlier) tile.keys = 0;
    } else if (order == SequenceOrder::striped) {
      // Key j of an earlier rank precedes query j. Key j of a later rank precedes query j + 1 only.
      tile.query = earlier ? 0 : 1;
      tile.queries = queries - tile.query;
      tile.keys = std::min(keys, tile.queries);
      tile.causal = true;
    } else if (earlier) {
      tile.keys = chunk(key_rank);
    } else {
      tile.query = chunk(query_rank);
      tile.queries = queries - tile.query;
    }
  }
  if (tile.queries <= 0 || tile.keys <= 0) return {};
  return tile;
}

std::int64_t SequencePlacement::pairs(int query_rank, bool causal) const {
  std::int64_t sum = 0;
  for (int key_rank = 0; key_rank < ranks; ++key_rank)
    if (const std::optional<Tile> seen = tile(query_rank, key_rank, causal)) sum += seen->pairs();
  return sum;
}

}  // namespace layers
