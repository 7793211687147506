#pragma once
// Bruck: ceil(log2 N) rounds for any N. Distances are relative to each rank. In round k of an
// all_gather, a rank receives the shares of the rank 2^k ahead, so its shares double. In round k of
// an all_to_all, a rank sends in one message all shares whose distance has bit k (Bruck, Ho,
// Kipnis, Upfal and Weathersby 1997, doi:10.1109/71.642949). It sends the fewest messages. It needs
// copies that rotate shares back and, in all_to_all, moves each share up to log2 N times.

#include <algorithm>
#include <bit>

#include "collectives/plan.h"

namespace collectives::bruck {

inline constexpr std::string_view paper = "Bruck et al. 1997, doi:10.1109/71.642949";

constexpr int rounds(int ranks) { return std::bit_width(static_cast<unsigned>(ranks - 1)); }

// Bay i holds the share of the rank i ahead.
inline int all_gather_bays(const Call& call) { return call.ranks; }
inline Plan all_gather(const Call& call) {
  const int rank = call.rank, ranks = call.ranks;
  Plan plan{1, ranks, all_gather_bays(call)};
  plan.add(copy(input(0), scratch(0, 0)));
  for (int distance = 1; distance < ranks; distance *= 2) {
    const int count = std::min(distance, ranks - distance);
    plan.add(send((rank - distance + ranks) % ranks, scratch(0, 0, count)));
    plan.add(receive((rank + distance) % ranks, scratch(distance, 0, count)));
  }
  plan.add(copy(scratch(0, 0, ranks - rank), output(rank, ranks - rank)));
  if (rank > 0) plan.add(copy(scratch(ranks - rank, 0, rank), output(0, rank)));
  return plan;
}

// Returns the number of distances below `ranks` that have this bit.
constexpr int with_bit(int ranks, int bit) {
  return ranks / (2 * bit) * bit + std::max(0, ranks % (2 * bit) - bit);
}
constexpr int longest_message(int ranks) {
  int longest = 0;
  for (int bit = 1; bit < ranks; bit *= 2) longest = std::max(longest, with_bit(ranks, bit));
  return longest;
}
// Bay i holds the share that travels over i ranks. The bays after those hold one message to send
// and one received message.
inline int all_to_all_bays(const Call& call) {
  return call.ranks > 1 ? call.ranks + 2 * longest_message(call.ranks) : 0;
}
inline Plan all_to_all(const Call& call) {
  const int rank = call.rank, ranks = call.ranks;
  Plan plan{1, ranks, all_to_all_bays(call)};
  const int to_send = ranks, received = ranks + longest_message(ranks);
  plan.add(copy(input(rank), output(rank)));
  for (int bit = 1; bit < ranks; bit *= 2) {
    const int count = with_bit(ranks, bit);
    int packed = 0;
    for (int way = bit; way < ranks; ++way) {
      if (!(way & bit)) continue;
      const bool starts = (way & (bit - 1)) == 0;  // has not moved yet
      plan.add(copy(starts ? input((rank + way) % ranks) : scratch(way, 0),
                    scratch(to_send + packed++, 0)));
    }
    plan.add(send((rank + bit) % ranks, scratch(to_send, 0, count)));
    plan.add(receive((rank - bit + ranks) % ranks, scratch(received, 0, count)));
    int unpacked = 0;
    for (int way = bit; way < ranks; ++way) {
      if (!(way & bit)) continue;
      const bool arrives = way < 2 * bit;
      plan.add(copy(scratch(received + unpacked++, 0),
                    arrives ? output((rank - way + ranks) % ranks) : scratch(way, 0)));
    }
  }
  return plan;
}

inline Volume all_gather_volume(const Call& call, std::int64_t count) {
  return both_ways((call.ranks - 1) * count, rounds(call.ranks));
}
// N/2 log2 N shares if N is a power of two.
inline Volume all_to_all_volume(const Call& call, std::int64_t count) {
  std::int64_t shares = 0;
  for (int bit = 1; bit < call.ranks; bit *= 2) shares += with_bit(call.ranks, bit);
  return both_ways(shares * count, rounds(call.ranks));
}

static_assert(with_bit(8, 2) == 4 && with_bit(7, 4) == 3 && with_bit(5, 2) == 2);

}  // namespace collectives::bruck
