#pragma once
// `auto`: the fastest algorithm for a call, by measurement on the current machine.

#include <string>
#include <string_view>

#include "collectives/communicator/communicator.h"

namespace collectives {

// The name that selects it in place of an algorithm's name.
inline constexpr std::string_view automatic = "auto";

struct Choice {
  const Algorithm* best = nullptr;
  const Algorithm* next = nullptr;  // null if there is only one
  double best_s = 0, next_s = 0;    // median over rounds of the slowest rank
  std::string text() const;         // "direct, 1.42 times as fast as ring"
};

// Collective over the group. Runs every algorithm that supports the call, in turns, on its own
// buffers. All ranks choose the same algorithm. count: elements of the whole buffer, or of a share.
Choice choose(Communicator& group, machine::Operation operation, machine::Dtype dtype,
              std::int64_t count, machine::Reduction reduction, int root,
              const std::shared_ptr<const TrafficMatrix>& traffic = {});

}  // namespace collectives
