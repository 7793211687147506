#include "suite/zero/file_bound.h"

#include <algorithm>
#include <vector>

#include "harness/measure/statistics.h"
#include "machine/base/clock.h"
#include "suite/reference/shared_counters.h"

namespace suite {
namespace {

constexpr harness::Counter file_counters[] = {
    nvme_GBps_counter,
    {"update_s", "s", Better::lower, Nature::measured, "update of states in a file (`zero_step`)"},
    {"file_pass_s", "s", Better::lower, Nature::measured,
     "a pass over the file that only reads and writes"},
    {"file_fraction", "", Better::higher, Nature::measured, "`file_pass_s` over `update_s`"}};
const bool file_counters_known = harness::add_counters(file_counters);

constexpr int rounds = 5;

double slowest(machine::World& world, const machine::Group& group,
               const std::function<void()>& work) {
  world.barrier(group);
  const double begin = machine::steady_s();
  work();
  return std::ranges::max(world.all_gather(group, machine::steady_s() - begin));
}

}  // namespace

void describe_file_bound(harness::Description& description, machine::World& world,
                         const machine::Group& group, zero::Step& step,
                         const std::function<void()>& before_update) {
  std::vector<double> updates, passes;
  const zero::OffloadTraffic before = step.moved();
  for (int round = 0; round < rounds; ++round) {
    before_update();
    updates.push_back(slowest(world, group, [&] { step.update(); }));
    passes.push_back(slowest(world, group, [&] {
      step.optimizer().visit(true, [](zero::Range, const zero::RangeStates&) {});
    }));
  }
  const zero::OffloadTraffic moved = step.moved() - before;  // by updates only
  const double bytes = static_cast<double>(moved.nvme_read + moved.nvme_written) / rounds;
  const double update_s = harness::median(updates), pass_s = harness::median(passes);
  description.set("update_s", update_s);
  description.set("file_pass_s", pass_s);
  description.set("file_fraction", pass_s / update_s);
  description.set("nvme_GBps", bytes / update_s / 1e9);
}

}  // namespace suite
