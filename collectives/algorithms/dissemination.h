#pragma once
// Dissemination: in round k every rank sends to the rank 2^k ahead and receives from the rank 2^k
// behind. After ceil(log2 N) rounds each rank has received, directly or indirectly, from all ranks
// (Hensgen, Finkel and Manber 1988, doi:10.1007/BF01379320).

#include "collectives/plan.h"

namespace collectives::dissemination {

inline constexpr std::string_view paper = "Hensgen, Finkel and Manber 1988, doi:10.1007/BF01379320";

// Messages are empty.
inline Plan barrier(const Call& call) {
  Plan plan{1};
  for (int distance = 1; distance < call.ranks; distance *= 2) {
    plan.add(send((call.rank + distance) % call.ranks, input(0)));
    plan.add(receive((call.rank - distance + call.ranks) % call.ranks, output(0)));
  }
  return plan;
}

inline Volume volume(const Call& call, std::int64_t) {
  int rounds = 0;
  while ((1 << rounds) < call.ranks) ++rounds;
  return both_ways(0, rounds);
}

}  // namespace collectives::dissemination
