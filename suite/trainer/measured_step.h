#pragma once
// A measured pipeline step, with all stages on one clock, and its description in a record.

#include <functional>
#include <string>
#include <vector>

#include "harness/record/description.h"
#include "machine/world/world.h"
#include "pipeline/execute.h"

namespace suite {

struct MeasuredStep {
  std::vector<pipeline::StageTimeline> stages;  // seconds since the first stage began
  double makespan_s = 0;                        // until the last stage ends
  double span_s = 0;       // longest time from a stage's first action to its last
  int peak_in_flight = 0;  // maximum over stages
};

// Gathers the timelines of all stages. Collective over the group. Ranks of one host share the
// steady clock. On several hosts, each rank's time starts at zero.
MeasuredStep gathered_step(machine::World& world, const machine::Group& group,
                           const pipeline::Timeline& mine);
// Runs a step `steps` times and sorts them, fastest first. Collective over the group.
std::vector<MeasuredStep> measured_steps(machine::World& world, const machine::Group& group,
                                         int steps, const std::function<pipeline::Timeline()>& run);

// Sets the timeline, the breakdown of the first stage's time and the counter in_flight_peak.
void describe(harness::Description& description, const MeasuredStep& step,
              const machine::Group& group);

// Sets the counters bubble_measured and bubble_expected (of_total of pipeline/timeline.h: idle time
// of all stages over their time) and, if a bubble is expected, their ratio bubble_ratio. The
// expected bubble is the paper's formula for these costs. If the formula does not hold, it is that
// of a simulated step, and the note reports this.
void describe_bubble(harness::Description& description, const MeasuredStep& step,
                     const pipeline::Schedule& schedule, const pipeline::Size& size,
                     const pipeline::StageSchedules& actions, const pipeline::Costs& costs);

// Returns the largest fraction of a stage's time in which it neither computed nor waited.
double executor_overhead(const MeasuredStep& step);

}  // namespace suite
