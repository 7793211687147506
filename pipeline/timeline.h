#pragma once
// The actions of a pipeline's stages with their times, simulated (simulate.h) or measured
// (execute.h).

#include <string>
#include <vector>

#include "pipeline/schedule.h"

namespace pipeline {

enum class Doing : unsigned char {
  compute,
  receive,  // waiting for what the action needs, and copying it in
  outbox,   // waiting for a slot for what the action will send
};

struct Event {
  Doing doing = Doing::compute;
  Action action;
  double start_s = 0, end_s = 0;
  double seconds() const { return end_s - start_s; }
};

using StageTimeline = std::vector<Event>;  // in order, not overlapping

// The actions really computed, in the text form of a schedule.
std::string executed(const StageTimeline& timeline);
double busy_s(const StageTimeline& timeline);  // computing
double span_s(const StageTimeline& timeline);  // from the first computing to the end of the last

// Idle time of one stage in a step. Two normalisations circulate, so both are named: of_total is
// idle time over the time of the step, of_ideal idle time over the time computing.
struct Bubble {
  double idle_s = 0, of_total = 0, of_ideal = 0;
};
Bubble bubble(double step_s, double busy_s);

}  // namespace pipeline
