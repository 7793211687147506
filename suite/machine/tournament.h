#pragma once
// A round-robin tournament of ranks by the circle method. One rank stays in place, the others
// rotate around it by one place each round; opposite ranks meet. Every pair meets exactly once, no
// rank twice in a round. If the number of ranks is odd, one rank has no peer in each round. A pure
// function of the number of ranks.

#include <vector>

namespace suite {

struct Pair {
  int low = 0, high = 0;  // low < high
  bool operator==(const Pair&) const = default;
};
using Round = std::vector<Pair>;

// Returns ranks - 1 rounds of ranks / 2 pairs if ranks is even, ranks rounds if it is odd.
std::vector<Round> tournament(int ranks);

// The same pairs in the same order, each in a round of its own.
std::vector<Round> one_at_a_time(const std::vector<Round>& rounds);

// The peer of this rank in the round, or -1.
int peer_in(const Round& round, int rank);

}  // namespace suite
