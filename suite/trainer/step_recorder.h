#pragma once
// Breaks down the time of training steps: records every step and describes the typical one.
//
//   StepRecorder recorder;
//   recorder.begin(device); …the step… recorder.end(timeline);  // for every step
//   recorder.describe(description, world, group, config);      // once, after the last step

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
  // Times are those of the device's stream if it runs behind its caller.
  void begin(machine::Device& device) {
    clock_.start(device.readable_by_host() ? nullptr : &device.stream());
  }
  void end(const pipeline::Timeline& timeline);

  // Describes the step whose time on the slowest rank is nearest to description.seconds. On rank 0
  // sets breakdown, step_breakdown, the trace of the last step, and these counters:
  // communication_fraction and bubble_fraction (means over ranks of the step's fractions),
  // hidden_communication_fraction (a mean, too, if a thread communicates) and other_fraction
  // (maximum over ranks). With pipelines also calls describe_pipeline (timeline_record.h). If the
  // steps are launches of a graph, only other_fraction is set, and no pipeline is described.
  // Collective over the group, whose ranks have recorded the same number of steps.
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
