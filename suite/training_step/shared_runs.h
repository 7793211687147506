#pragma once
// Runs that do not depend on each other, made by the ranks of a case together, because only one
// core would work otherwise.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

#include "machine/world/world.h"

namespace suite {

// Makes the runs on at most `most` ranks of the group, in turn, and returns their results to rank 0
// of the group, which makes the first run. Other ranks get the results of their own. Collective
// over the group.
template <class Result>
std::vector<Result> shared_runs(machine::World& world, const machine::Group& group, int most,
                                const std::vector<std::function<Result()>>& runs) {
  const int workers = std::min({most, group.size(), static_cast<int>(runs.size())});
  const auto worker = [&](std::size_t run) { return static_cast<int>(run) % workers; };
  std::vector<Result> results(runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (worker(i) == group.index) results[i] = runs[i]();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (worker(i) == 0) continue;
    if (group.index == worker(i))
      world.send(group.members[0], results[i]);
    else if (group.index == 0)
      results[i] = world.receive<Result>(group.members[static_cast<std::size_t>(worker(i))]);
  }
  return results;
}

}  // namespace suite
