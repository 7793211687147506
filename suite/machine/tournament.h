#pragma once
// A round-robin tournament of ranks by the circle method. One rank stays in place, the others
// rotate around it by one place per round, and opposite ranks are a pair. Every pair occurs exactly
// once, and no rank is twice in a round. If the number of ranks is odd, one rank has no peer in
// each round. The result depends only on the number of ranks.

#include <algorithm>
#include <vector>

namespace suite {

struct Pair {
  int low = 0, high = 0;  // low < high
  bool operator==(const Pair&) const = default;
};
using Round = std::vector<Pair>;

// Returns ranks - 1 rounds of ranks / 2 pairs if ranks is even, ranks rounds if it is odd.
inline std::vector<Round> tournament(int ranks) {
  if (ranks < 2) return {};
  // If ranks is odd, the rank that would meet the missing one has no peer.
  const int players = ranks + ranks % 2, turning = players - 1;
  std::vector<Round> rounds;
  for (int number = 0; number < turning; ++number) {
    Round& round = rounds.emplace_back();
    const auto meet = [&](int one, int other) {
      const auto [low, high] = std::minmax({one, other});
      if (high < ranks) round.push_back({low, high});
    };
    meet(turning, number);
    for (int step = 1; step < players / 2; ++step)
      meet((number + step) % turning, (number - step + turning) % turning);
  }
  return rounds;
}

// Returns the same pairs in the same order, each in its own round.
inline std::vector<Round> one_at_a_time(const std::vector<Round>& rounds) {
  std::vector<Round> single;
  for (const Round& round : rounds)
    for (const Pair& pair : round) single.push_back({pair});
  return single;
}

// Returns the peer of this rank in the round, or -1.
inline int peer_in(const Round& round, int rank) {
  for (const Pair& pair : round)
    if (pair.low == rank || pair.high == rank) return pair.low + pair.high - rank;
  return -1;
}

}  // namespace suite
