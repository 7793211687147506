#pragma once
// Time of a schedule from the costs of its actions: what the prover checks against the papers'
// formulas, what the cost model predicts with, and what a measured timeline is drawn beside.
//
// Every stage computes its actions in order; an action starts when the stage is free, its message
// has arrived and its slot in the outbox is free (messages.h). Receives block and channels are
// FIFO, so the result does not depend on the order in which the stages are simulated: a schedule
// that finishes here finishes under any timing (Kahn 1974, "The semantics of a simple language for
// parallel programming").

#include <optional>
#include <string>
#include <vector>

#include "pipeline/schedule.h"
#include "pipeline/timeline.h"

namespace pipeline {

// A fault and its action. The position behind the last action stands for a missing action.
struct Fault {
  int stage = 0;
  std::size_t position = 0;
  std::string what;
};

// One line a stage; the action at fault stands between > and <, with what is wrong below.
std::string draw(const StageSchedules& schedules, const std::optional<Fault>& fault = {});

struct Simulation {
  double makespan_s = 0;  // from the first action of all stages to the last
  // From a stage's first action to its last, of the stage that takes longest: the time of a step
  // when the next begins on each stage as soon as it is done there.
  double span_s = 0;
  std::vector<double> busy_s;         // of each stage
  std::vector<StageTimeline> stages;  // compute events and the waits between them
  std::optional<Fault> fault;  // stages that can't finish: a deadlock or messages out of order
  Bubble bubble(int stage) const { return pipeline::bubble(span_s, busy_s[stage]); }
};

// costs: of each stage. Throws std::invalid_argument when their number is not the number of stages.
// With a fault, times end where the stages stopped. Without timelines there are their sums only.
Simulation simulate_or_fault(const StageSchedules& schedules, const std::vector<Costs>& costs,
                             bool timelines = true);

// Throws std::invalid_argument with the drawing when the schedule has a fault.
Simulation simulate(const StageSchedules& schedules, const std::vector<Costs>& costs);
// All stages cost the same.
Simulation simulate(const Schedule& schedule, const Size& size, const Costs& costs);

}  // namespace pipeline
