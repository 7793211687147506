#pragma once
// Where training steps' time goes: every step is recorded, and the typical one told of.
//
//   StepRecorder recorder;
//   recorder.begin(); …the step… recorder.end(timeline);  // each
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

  // Of the step whose time (of the slowest rank) is nearest description.seconds: on rank 0 sets
  // breakdown, step_breakdown and the counters communication_fraction and bubble_fraction (means
  // over ranks of what these take of the step), hidden_communication_fraction (likewise, where
  // there is a thread for it) and other_fraction (of the rank where it is largest); and the trace,
  // which is of the last step. With pipelines also describe_pipeline (timeline_record.h).
  // Collective over the group, whose ranks have recorded as many steps each.
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
