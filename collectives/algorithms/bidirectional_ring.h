#pragma once
// Bidirectional ring: two rings over the same ranks in opposite directions, each with half of the
// data, so that full-duplex links are used in both directions (the two-coloured bucket algorithm of
// Jain and Sabharwal, "Optimal bucket algorithms for large MPI collectives on torus interconnects",
// ICS 2010). It sends the same number of bytes as the ring.
//
// Even pieces travel to the next rank and odd pieces to the previous rank, so a share has at least
// two pieces.

#include <algorithm>

#include "collectives/algorithms/ring.h"
#include "collectives/plan.h"

namespace collectives::bidirectional_ring {

using ring::around;

inline constexpr std::string_view paper = "Jain and Sabharwal 2010, ICS";

constexpr int even_pieces(int pieces) { return std::max(2, pieces - pieces % 2); }

inline Plan all_reduce(const Call& call) {
  return ring::all_reduce_laps(call, even_pieces(call.pieces), true);
}
inline int reduce_scatter_bays(const Call& call) {
  return ring::bays_of_lap(call, even_pieces(call.pieces));
}
inline Plan reduce_scatter(const Call& call) {
  return ring::reduce_scatter_lap(call, even_pieces(call.pieces), true);
}
inline Plan all_gather(const Call& call) {
  return ring::all_gather_lap(call, even_pieces(call.pieces), true);
}

// Returns the elements of a share that travel forwards: its even pieces. Longer pieces come first.
constexpr std::int64_t forward_part(std::int64_t share, int pieces) {
  return share / pieces * (pieces / 2) + (share % pieces + 1) / 2;
}
// Returns the elements of two laps in one direction, without the shares that end at this rank and
// at the next rank, as in the ring.
constexpr std::int64_t sent_one_way(const Call& call, int rank, int forward, std::int64_t count) {
  if (call.ranks == 1) return 0;
  const auto part = [&](int share) {
    const std::int64_t size = part_of(count, call.ranks, around(share, call.ranks)).size();
    const std::int64_t even = forward_part(size, call.pieces);
    return forward > 0 ? even : size - even;
  };
  std::int64_t all = 0;
  for (int share = 0; share < call.ranks; ++share) all += part(share);
  return 2 * all - part(rank + forward) - part(rank + 2 * forward);
}
inline Volume all_reduce_volume(const Call& call, std::int64_t count) {
  const std::int64_t messages = 2LL * (call.ranks - 1) * call.pieces;
  const int rank = call.rank;
  return {sent_one_way(call, rank, 1, count) + sent_one_way(call, rank, -1, count), messages,
          sent_one_way(call, rank - 1, 1, count) + sent_one_way(call, rank + 1, -1, count),
          messages};
}

static_assert(sent_one_way({0, 4, 2}, 0, 1, 1000) == 3 * 1000 / 4);  // half of 2(N-1)/N n

}  // namespace collectives::bidirectional_ring
