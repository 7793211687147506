#include "suite/machine/tournament.h"

#include <algorithm>

namespace suite {

std::vector<Round> tournament(int ranks) {
  if (ranks < 2) return {};
  // If ranks is odd, the rank that would meet the missing one has no peer.
  const int players = ranks + ranks % 2, turning = players - 1;
  std::vector<Round> rounds;
  for (int number = 0; number < turning; ++number) {
    Round round;
    const auto meet = [&](int one, int other) {
      if (std::max(one, other) < ranks)
        round.push_back({std::min(one, other), std::max(one, other)});
    };
    meet(turning, number);
    for (int step = 1; step < players / 2; ++step)
      meet((number + step) % turning, (number - step + turning) % turning);
    rounds.push_back(std::move(round));
  }
  return rounds;
}

std::vector<Round> one_at_a_time(const std::vector<Round>& rounds) {
  std::vector<Round> single;
  for (const Round& round : rounds)
    for (const Pair& pair : round) single.push_back({pair});
  return single;
}

int peer_in(const Round& round, int rank) {
  for (const Pair& pair : round) {
    if (pair.low == rank) return pair.high;
    if (pair.high == rank) return pair.low;
  }
  return -1;
}

}  // namespace suite
