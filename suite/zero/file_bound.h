#pragma once
// Counters of an update of states in a file, compared with a pass over the file.

#include <algorithm>
#include <functional>
#include <vector>

#include "harness/measure/statistics.h"
#include "machine/base/clock.h"
#include "suite/reference/unit.h"
#include "suite/zero/zero_step_cost.h"
#include "zero/stages/step.h"

namespace suite {

// Alternates updates of states in a file with passes over the file that read and write the same
// bytes without computation, on all ranks at once. Sets counters, as medians over rounds of the
// slowest rank: update_s (with norm and publishing), file_pass_s, file_fraction (the pass over
// the update: 1 if the update waits only for the disk) and nvme_GBps (of the update). The values
// are not in a file. sum_up: makes the gradients of a step.
inline void describe_file_bound(Description& description, Context& context, zero::Step& step,
                                const std::function<void()>& sum_up) {
  constexpr int rounds = 5;
  const auto slowest_s = [&](const auto& work) {
    context.world.barrier(context.group);
    const double begin = machine::steady_s();
    work();
    return std::ranges::max(context.world.all_gather(context.group, machine::steady_s() - begin));
  };
  std::vector<double> updates, passes;
  const zero::OffloadTraffic before = step.moved();
  for (int round = 0; round < rounds; ++round) {
    sum_up();
    updates.push_back(slowest_s([&] { step.update(); }));
    passes.push_back(slowest_s(
        [&] { step.optimizer().visit(true, [](zero::Range, const zero::RangeStates&) {}); }));
  }
  const double update_s = harness::median(updates), pass_s = harness::median(passes);
  description.set("update_s", update_s);
  description.set("file_pass_s", pass_s);
  description.set("file_fraction", pass_s / update_s);
  // Counts only the bytes that updates move.
  description.set("nvme_GBps", file_bytes(step.moved() - before) / rounds / update_s / 1e9);
}

}  // namespace suite
