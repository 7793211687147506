#pragma once
// The placement of the positions of a sequence over the ranks of a context-parallel group, and the
// part of the causal mask between the queries of one rank and the keys of another.
//
//   contiguous   rank r holds one block of consecutive positions
//   striped      rank r holds positions r, r + ranks, … (Brandon et al. 2023, arXiv:2311.09431)
//   zigzag       of 2 ranks chunks, rank r holds chunk r and chunk 2 ranks - 1 - r (the order of
//                Llama 3 and of Megatron-LM: Llama team 2024, arXiv:2407.21783, section 3.3.2)
//
// A rank stores its positions in ascending order. Blocks and chunks differ by at most one position,
// so the degree need not divide the sequence. A rank may have no positions.
//
//   SequencePlacement placement{SequenceOrder::zigzag, 4096, 4};
//   placement.tile(3, 0, true);   // {0, 1024, 0, 512, false}: all queries see the first chunk
//
// The causal mask between two ranks is one rectangle, either full or causal along its own diagonal,
// so a kernel that knows the plain causal mask computes every part of it.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace layers {

enum class SequenceOrder : unsigned char { contiguous, striped, zigzag };
inline constexpr SequenceOrder all_orders[] = {SequenceOrder::contiguous, SequenceOrder::striped,
                                               SequenceOrder::zigzag};
std::string_view name(SequenceOrder order);

// Rows [local, local + count) of a rank are the positions global, global + stride, ….
struct Segment {
  std::int64_t local = 0, global = 0, count = 0, stride = 1;
  bool operator==(const Segment&) const = default;
};

// Rows [query, query + queries) of one rank and [key, key + keys) of another. If causal, row query
// + i sees the rows up to key + i, else all of them.
struct Tile {
  std::int64_t query = 0, queries = 0, key = 0, keys = 0;
  bool causal = false;
  bool operator==(const Tile&) const = default;
  std::int64_t pairs() const;  // of a query and a key that it sees
};

struct RankRow {
  int rank = 0;
  std::int64_t row = 0;
  bool operator==(const RankRow&) const = default;
};

struct SequencePlacement {
  SequenceOrder order = SequenceOrder::contiguous;
  std::int64_t sequence = 1;  // positions
  int ranks = 1;
  // Consecutive ranks that split the rows of one outer rank into consecutive rows (hybrid
  // attention).
  int inner = 1;

  // Returns the placement over groups of `inner` ranks.
  SequencePlacement outer() const { return {order, sequence, ranks / inner}; }

  std::int64_t rows(int rank) const;
  std::int64_t most_rows() const;  // of any rank
  std::int64_t position(int rank, std::int64_t row) const;
  RankRow place(std::int64_t position) const;
  // Returns the rows of a rank in ascending order, without empty segments.
  std::vector<Segment> segments(int rank) const;
  // Requires inner 1. Returns the rows between which the mask is not empty. Without a causal mask:
  // all of them.
  std::optional<Tile> tile(int query_rank, int key_rank, bool causal) const;
  // Returns the pairs of a query of this rank and a key of any rank that the query sees.
  std::int64_t pairs(int query_rank, bool causal) const;

 private:
  std::int64_t chunk(int index) const;  // positions of one of 2 ranks chunks
  std::int64_t chunk_begin(int index) const;
};

}  // namespace layers
