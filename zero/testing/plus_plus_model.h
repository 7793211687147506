#pragma once
// A model for tests of ZeRO++: backward makes gradients of the values that it is given, so values
// that are stale or gathered in the wrong place change the next step.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "machine/device/random.h"
#include "machine/world/world.h"
#include "zero/cost/cost.h"
#include "zero/stages/step.h"
#include "zero/zero_plus_plus/quantized_gradients.h"
#include "zero/zero_plus_plus/secondary_shards.h"

namespace zero::testing {

struct PlusPlusModel {
  // Sizes need padding. The last part uses the first part's gain again, and row 6 is frozen.
  static constexpr std::int64_t sizes[] = {7, 300, 129, 1000, 65, 257, 190};
  static constexpr int rows = 7;
  const std::vector<std::vector<int>> parts = {{0, 1}, {2, 3, 6}, {4, 5, 0}};

  std::vector<collectives::Parameter> parameters;
  collectives::Communicator dp;
  std::unique_ptr<collectives::Communicator> hpz, near, far;
  GradientPlan plan;
  std::unique_ptr<FlatStates> states;
  std::unique_ptr<Step> step;

  // hosts: the ranks of a secondary group, of which there is a communicator in any case.
  PlusPlusModel(machine::World& world, machine::Dtype dtype, StepOptions options, int hosts)
      : dp(world, world.group(), machine::Transport::shared_memory) {
    for (const std::int64_t size : sizes) {
      collectives::Parameter parameter;
      parameter.name = std::to_string(parameters.size());
      parameter.global_shape = {size};
      parameters.push_back(std::move(parameter));
    }
    if (hosts > 1)
      hpz = std::make_unique<collectives::Communicator>(
          world, secondary_group(world.group(), hosts), machine::Transport::shared_memory);
    const int hop = first_hop(options.plus_plus, world.size());
    if (options.plus_plus.quantized_gradients && hop < world.size()) {
      near = std::make_unique<collectives::Communicator>(world, near_group(world.group(), hop),
                                                         machine::Transport::shared_memory);
      far = std::make_unique<collectives::Communicator>(world, far_group(world.group(), hop),
                                                        machine::Transport::shared_memory);
    }
    options.all_gather = options.reduce_scatter = "direct";
    plan =
        gradient_plan(part({0, 1, 2, 3, 4, 5, 6}), dtype,
                      machine::Grid({.dp = world.size()}, world.rank()), 3.0 * world.size(), {"6"});
    states = std::make_unique<FlatStates>(
        world.device(), plan, part({0, 1, 2, 3, 4, 5, 6}),
        LayoutOptions{.parts = {0, 0, 1, 1, 2, 2, 1}, .persistence_threshold = 10});
    for (std::size_t row = 0; row < parameters.size(); ++row) {
      std::vector<double> values;
      for (std::int64_t i = 0; i < sizes[row]; ++i)
        values.push_back(2 * machine::uniform(row, static_cast<std::uint64_t>(i)) - 1);
      from_doubles(parameters[row].value, values);
    }
    step = make_step(3, *states, plan,
                     {.dp = &dp, .hpz = hpz.get(), .qgz_near = near.get(), .qgz_far = far.get()},
                     std::move(options));
  }

  Step::Part part(const std::vector<int>& of) {
    Step::Part result;
    for (const int row : of) result.push_back(&parameters[static_cast<std::size_t>(row)]);
    return result;
  }
  Usage usage(int micro_batches) const {
    Usage usage = forward_and_backward(parts, micro_batches);
    usage.ready.front().pop_back();  // row 0 is ready with the first part
    return usage;
  }

  // scale: of the gradients; an infinite one makes a step that is skipped.
  void micro_batch(bool last, double scale = 1) {
    step->begin_micro_batch(last);
    for (const std::vector<int>& of : parts) {
      step->before_use(part(of));
      step->after_use(part(of));
    }
    for (std::size_t i = parts.size(); i-- > 0;) {
      const std::vector<int>& of = parts[i];
      step->before_use(part(of));
      step->before_gradients(part(of));
      for (const int row : of) {
        const collectives::Parameter& p = parameters[static_cast<std::size_t>(row)];
        if (row == rows - 1) continue;
        std::vector<double> gradients = to_doubles(p.gradient);
        const std::vector<double> values = to_doubles(p.value);
        for (std::size_t k = 0; k < values.size(); ++k)
          gradients[k] += scale * (values[k] * (dp.rank() + 1) + 0.25);
        from_doubles(p.gradient, gradients);
      }
      step->after_use(part(of));
      Step::Part ready = part(of);
      if (i + 1 == parts.size()) ready.pop_back();
      step->gradients_ready(ready);
    }
    step->end_micro_batch();
  }
  StepResult whole_step(int micro_batches, double scale = 1) {
    for (int i = 0; i < micro_batches; ++i) micro_batch(i + 1 == micro_batches, scale);
    return step->step();
  }
  std::vector<double> values() {
    const Step::Part all = part({0, 1, 2, 3, 4, 5, 6});
    std::vector<double> result;
    step->before_use(all);
    for (const collectives::Parameter* p : all)
      for (const double value : to_doubles(p->value)) result.push_back(value);
    step->after_use(all);
    return result;
  }

  // Padded elements that stage 3 gathers for a use, without and with the frozen bucket.
  std::int64_t gathered() const {
    std::int64_t elements = 0;
    for (const Bucket& bucket : states->layout().buckets)
      if (!bucket.persistent) elements += bucket.range.size();
    return elements;
  }
  std::int64_t persistent() const {
    std::int64_t elements = 0;
    for (const Bucket& bucket : states->layout().buckets)
      if (bucket.persistent) elements += bucket.range.size();
    return elements;
  }
};

}  // namespace zero::testing
