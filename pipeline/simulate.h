#pragma once
// The time of a schedule, from the costs of its actions. The prover compares it with the papers'
// formulas. The cost model predicts with it, and measured timelines are drawn next to it.
//
// Every stage computes its actions in order; an action starts when the stage is free, its message
// has arrived and its slot in the outbox is free (messages.h). Receives block and channels are
// FIFO. So the result does not depend on the order in which the stages are simulated. A schedule
// that finishes here finishes under any timing (Kahn 1974, "The semantics of a simple language for
// parallel programming").

#include <optional>
#include <string>
#include <vector>

#include "pipeline/schedule.h"
#include "pipeline/timeline.h"

namespace pipeline {

// A fault and its action. The position after the last action represents a missing action.
struct Fault {
  int stage = 0;
  std::size_t position = 0;
  std::string what;
};

// Returns one line per stage. The faulty action is between > and <, and the error is below.
std::string draw(const StageSchedules& schedules, const std::optional<Fault>& fault = {});

struct Simulation {
  double makespan_s = 0;  // from the first action of all stages to the last
  // The longest time from a stage's first action to its last. It is the time of a step if each
  // stage begins the next step as soon as it ends this one.
  double span_s = 0;
  std::vector<double> busy_s;         // of each stage
  std::vector<StageTimeline> stages;  // compute events and the waits between them
  std::optional<Fault> fault;  // if stages cannot finish: a deadlock or messages out of order
  Bubble bubble(int stage) const { return pipeline::bubble(span_s, busy_s[stage]); }
};

// costs: by stage. Throws std::invalid_argument if their number differs from the number of stages.
// With a fault, times end where the stages stopped. Without timelines, only their sums are
// computed.
Simulation simulate_or_fault(const StageSchedules& schedules, const std::vector<Costs>& costs,
                             bool timelines = true);

// Throws std::invalid_argument with the drawing if the schedule has a fault.
Simulation simulate(const StageSchedules& schedules, const std::vector<Costs>& costs);
// Simulates with equal costs on all stages.
Simulation simulate(const Schedule& schedule, const Size& size, const Costs& costs);

}  // namespace pipeline
