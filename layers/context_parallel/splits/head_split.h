#pragma once
// The heads of attention dealt out to ranks: consecutive heads of queries, at most one more on the
// first ranks, and the heads of keys that these queries use. Ranks whose queries share a head of
// keys each hold a copy of it.
//
//   HeadSplit split{6, 2, 4};   // 6 heads of queries, 2 of keys, 4 ranks
//   queries  {0, 1} {2, 3} {4} {5}       keys  {0} {0, 1} {1} {1}

#include <cstdint>
#include <vector>

#include "collectives/plan.h"

namespace layers {

struct HeadSplit {
  std::int64_t heads = 1, kv_heads = 1;  // kv_heads divides heads
  int ranks = 1;                         // at most heads

  collectives::ChunkRange queries(int rank) const;
  collectives::ChunkRange keys(int rank) const;

  // Heads of queries and of keys, counted from the rank's first, for one call of a kernel in which
  // equally many queries use every head of keys.
  struct Call {
    std::int64_t query = 0, queries = 0, key = 0, keys = 0;
    bool operator==(const Call&) const = default;
  };
  // Returns one call if the rank has whole groups, else one call for every head of keys.
  std::vector<Call> calls(int rank) const;

  // Returns for every rank the number of its layer. The ranks of a layer share no head of keys, so
  // a tensor of all heads holds the gradients of one layer. There are as many layers as copies of
  // the head with most.
  std::vector<int> layers() const;
};

}  // namespace layers
