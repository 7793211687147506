#pragma once
// A plan bound to buffers of a length and a dtype: its steps as actions on bytes, which Execution
// runs. The time that binding takes grows with the number of steps, not with its square.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "collectives/layout.h"
#include "collectives/plan.h"
#include "machine/device/memory.h"

namespace collectives {

struct Place {
  Buffer buffer = Buffer::input;
  std::size_t offset = 0;  // bytes
  auto operator<=>(const Place&) const = default;
};

// A summand: the next message of a peer, or this rank's data.
struct Term {
  int peer = -1;  // -1: own
  Place own{};
};

struct Action {
  Verb verb;
  int peer;
  Place source, target;
  std::int64_t count;
  std::size_t bytes;
  std::vector<std::size_t> after;  // sends that peers must have read before target is written
  int ahead = 0;                   // of a post: number of the message from now; 1: the next
  bool pushes = false;             // of a send: Step::pushes
  bool lends = false;              // of a send: a message of its peer follows in the plan
  std::size_t forwards = 0;        // of a sum: number of sends of exactly this target that follow
  std::vector<int> to_all;  // of a send: its peer and those of the sends of this source that follow
  std::vector<Term> terms;  // of a receive_reduce: its summands, in the order of the additions
  machine::Store store = machine::Store::cached;  // of a receive, copy or receive_reduce
};

struct BoundPlan {
  static constexpr std::size_t no_action = std::numeric_limits<std::size_t>::max();
  std::vector<Action> actions;
  std::vector<std::size_t> action_of;  // by step; no_action for a copy of a chunk to itself
  std::size_t visited = 0;             // RangeMap::visited, for tests
};

// store: for received, copied and summed values that no later step reads. joins_sums: several
// additions to a sum become one action (joined_sum.h). Throws std::logic_error if the plan posts a
// place that it does not receive into.
BoundPlan bind(const Plan& plan, const Layout& layout, bool in_place, std::size_t element_bytes,
               machine::Store store, bool joins_sums = false);

}  // namespace collectives
