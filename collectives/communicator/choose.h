#pragma once
// `auto`: the fastest algorithm for a call, by measurement on the machine at hand.

#include <string>
#include <string_view>

#include "collectives/communicator/communicator.h"

namespace collectives {

// As a name where algorithms have names.
inline constexpr std::string_view automatic = "auto";

struct Choice {
  const Algorithm* best = nullptr;
  const Algorithm* next = nullptr;  // null where there is no second
  double best_s = 0, next_s = 0;    // median over rounds of the slowest rank
  std::string text() const;         // "direct, 1.42 times as fast as ring"
};

// Collective over the group: runs every algorithm that does not refuse the call, in turns, on
// buffers of its own; all ranks choose the same. count: elements of the whole, or of a share.
Choice choose(Communicator& group, machine::Operation operation, machine::Dtype dtype,
              std::int64_t count, machine::Reduction reduction, int root,
              const std::shared_ptr<const TrafficMatrix>& traffic = {});

}  // namespace collectives
