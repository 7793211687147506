#pragma once
// The actions of a pipeline's stages with their times, simulated (simulate.h) or measured
// (execute.h).

#include <string>
#include <vector>

#include "pipeline/schedule.h"

namespace pipeline {

enum class Doing : unsigned char {
  compute,
  receive,  // waiting for the action's message, and copying it
  outbox,   // waiting for a slot for the message that the action will send
};

struct Event {
  Doing doing = Doing::compute;
  Action action;
  double start_s = 0, end_s = 0;
  double seconds() const { return end_s - start_s; }
};

using StageTimeline = std::vector<Event>;  // in order, not overlapping

// Returns the computed actions, in the text form of a schedule.
std::string executed(const StageTimeline& timeline);
double busy_s(const StageTimeline& timeline);  // computing
double span_s(const StageTimeline& timeline);  // from the first compute start to the last end

// Idle time of one stage in a step. Two normalizations are in use, so both are given: of_total is
// idle time divided by the time of the step, and of_ideal is idle time divided by the compute time.
struct Bubble {
  double idle_s = 0, of_total = 0, of_ideal = 0;
};
Bubble bubble(double step_s, double busy_s);

}  // namespace pipeline
