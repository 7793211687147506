#pragma once
// Who meets whom: a round-robin tournament by the circle method. One player stands still, the
// others turn around it by one place a round; who stand opposite each other meet. Every pair meets
// exactly once, nobody twice in a round; of an odd number one has a bye in each round. A pure
// function of the number of ranks.

#include <vector>

namespace suite {

struct Pair {
  int low = 0, high = 0;  // low < high
  bool operator==(const Pair&) const = default;
};
using Round = std::vector<Pair>;

// ranks - 1 rounds of ranks / 2 pairs where ranks is even, ranks rounds where it is odd.
std::vector<Round> tournament(int ranks);

// The same pairs in the same order, each in a round of its own.
std::vector<Round> one_at_a_time(const std::vector<Round>& rounds);

// Whom this rank meets in the round, or -1.
int peer_in(const Round& round, int rank);

}  // namespace suite
