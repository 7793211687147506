#pragma once
// A pipeline schedule that a unit runs: its actions, links and executor, and the oracles of its
// messages and of the order of its actions. Each rank is a stage.

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string>

#include "machine/link/connect.h"
#include "pipeline/execute.h"
#include "suite/reference/boundary_traffic.h"
#include "suite/reference/unit.h"
#include "suite/trainer/measured_step.h"

namespace suite {

// Returns why no stages can run the schedule of this case, or empty.
std::string why_no_schedule(const auto& c) {
  return pipeline::find_schedule(c.schedule).why_not({c.ranks, c.micro_batches, c.virtual_stages});
}

class PipelineRun {
 public:
  const Context& context;
  const pipeline::Schedule& schedule;
  const pipeline::Size size;
  const pipeline::StageSchedules actions;
  const pipeline::Boundary boundary;
  const int stage;

  // Case: ranks, schedule, virtual_stages, micro_batches and transport.
  template <class Case>
  PipelineRun(const Case& c, const Context& on, const pipeline::Boundary& of,
              pipeline::Receives receives = pipeline::Receives::when_needed)
      : context(on),
        schedule(pipeline::find_schedule(c.schedule)),
        size{c.ranks, c.micro_batches, c.virtual_stages},
        actions(pipeline::all_stages(schedule, size)),
        boundary(of),
        stage(on.group.index),
        activations_(machine::connect(on.world, on.group, c.transport, machine::LinkStream::own)),
        gradients_(machine::connect(on.world, on.group, c.transport, machine::LinkStream::own)),
        executor_(actions, c.micro_batches, boundary, {*activations_, *gradients_}, on.device,
                  on.world.host_device(), receives) {}

  void run(const pipeline::Stage& callables) { executor_.run(callables); }

  // Judges one run. As in the paper, the volume is that of both links.
  void judge(Judge& judge, const pipeline::Stage& callables) {
    activations_->reset_traffic();
    gradients_->reset_traffic();
    run(callables);
    const pipeline::Timeline& timeline = executor_.timeline();
    machine::Traffic measured = activations_->total();
    measured += gradients_->total();
    judge.volume("pp", {Operation::send_receive, boundary.dtype}, measured,
                 boundary_traffic(actions.placement, stage, size.micro_batches, boundary.bytes()));
    const std::string what = fmt::format("stage {}", stage);
    judge.schedule(what, pipeline::executed(timeline.events), text(schedule.stage(stage, size)));
    judge.schedule(what + ", micro-batches alive at once", timeline.peak_in_flight,
                   schedule.peak(stage, size));
  }

  // Runs five steps, each after prepare. Describes and returns the step at this place in the order
  // of time, the fastest first.
  MeasuredStep describe(Description& description, const pipeline::Stage& callables,
                        const std::function<void()>& prepare, std::size_t place,
                        const pipeline::Costs& costs) {
    const MeasuredStep step = measured_steps(context.world, context.group, 5, [&] {
      prepare();
      context.world.barrier(context.group);
      run(callables);
      return executor_.timeline();
    })[place];
    suite::describe(description, step, context.group);
    describe_bubble(description, step, schedule, size, actions, costs);
    return step;
  }

 private:
  std::unique_ptr<machine::Link> activations_, gradients_;
  pipeline::Executor executor_;
};

}  // namespace suite
