#pragma once
// A pipeline step as it really ran, all stages on one clock, and what a record shows of it.

#include <functional>
#include <string>
#include <vector>

#include "harness/record/description.h"
#include "machine/world/world.h"
#include "pipeline/execute.h"

namespace suite {

struct MeasuredStep {
  std::vector<pipeline::StageTimeline> stages;  // seconds since the first began
  double makespan_s = 0;                        // until the last has computed all
  double span_s = 0;       // from a stage's first action to its last, of the one that takes longest
  int peak_in_flight = 0;  // the most of any stage
};

// Of what each stage recorded. Collective over the group. Ranks of one host share the steady clock;
// elsewhere each starts its own at zero.
MeasuredStep gathered_step(machine::World& world, const machine::Group& group,
                           const pipeline::Timeline& mine);
// Runs a step so many times; the fastest comes first. Collective over the group.
std::vector<MeasuredStep> measured_steps(machine::World& world, const machine::Group& group,
                                         int steps, const std::function<pipeline::Timeline()>& run);

// Timeline, breakdown of the first stage's time, and the counter in_flight_peak.
void describe(harness::Description& description, const MeasuredStep& step,
              const machine::Group& group);

// Counters bubble_measured and bubble_expected: idle time of all stages over their time, of_total
// in pipeline/timeline.h; and where a bubble is expected, their ratio bubble_ratio. Expected by the
// paper's formula for these costs; where the formula does not hold, of a simulated step, which the
// record's note says.
void describe_bubble(harness::Description& description, const MeasuredStep& step,
                     const pipeline::Schedule& schedule, const pipeline::Size& size,
                     const pipeline::StageSchedules& actions, const pipeline::Costs& costs);

// Of the stage that lost most: the part of its time in which it neither computed nor waited.
double executor_overhead(const MeasuredStep& step);

}  // namespace suite
