#pragma once
// The breakdown of training steps' time: records every step and describes the typical one.
//
//   StepRecorder recorder;
//   recorder.begin(); …the step… recorder.end(timeline);  // every step
//   recorder.describe(description, world, group, config);      // once, at the end

#include <map>
#include <string>
#include <vector>

#include "harness/record/description.h"
#include "machine/world/step_clock.h"
#include "machine/world/world.h"
#include "pipeline/execute.h"
#include "suite/trainer/trainer.h"

namespace suite {

class StepRecorder {
 public:
  void begin() { clock_.start(); }
  void end(const pipeline::Timeline& timeline);

  // Describes the step whose time on the slowest rank is nearest to description.seconds. On rank 0
  // sets breakdown, step_breakdown and the counters communication_fraction and bubble_fraction
  // (means over ranks of the step's fractions), hidden_communication_fraction (likewise, if a
  // thread communicates) and other_fraction (of the rank with most), and the trace of the last
  // step. With pipelines also calls describe_pipeline (timeline_record.h). Collective over the
  // group, whose ranks have recorded the same number of steps.
  void describe(harness::Description& description, machine::World& world,
                const machine::Group& group, const TrainingConfig& config) const;

 private:
  struct Totals {
    double seconds = 0;
    std::vector<machine::StepTimes::Row> rows;
    std::map<int, double> waited_s;
    std::map<std::string, double> hidden_s;
    pipeline::Timeline timeline;
  };
  std::size_t typical(double seconds, machine::World& world, const machine::Group& group) const;

  machine::StepClock clock_;
  std::vector<Totals> steps_;
};

}  // namespace suite
