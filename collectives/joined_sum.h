#pragma once
// Consecutive additions of a plan that the executor makes in one pass. A core reads several
// messages at once faster than one after the other, and the sum of the first ones is not written
// and read again. The order of additions, and so each bit of the sum, stays.

#include <cstddef>
#include <vector>

#include "collectives/plan.h"

namespace collectives {

// A summand: the next message of a peer, or this rank's own data.
struct Summand {
  int peer = -1;  // -1: own
  Slice own{};
  bool operator==(const Summand&) const = default;
};

// The messages stay unread until all of them have arrived.
struct JoinedSum {
  std::size_t steps = 0;  // that it replaces; 0: there are no two additions to join
  std::vector<Summand> summands;
  Slice target{};
};

// Returns the sum that begins with plan.steps[first], as long as possible. No later step reads a
// slice that the sum no longer writes, no peer has two summands, and the first one has no posted
// place.
JoinedSum joined_sum(const Plan& plan, std::size_t first);

}  // namespace collectives
