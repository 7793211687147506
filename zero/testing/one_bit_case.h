#pragma once
// The common part of the tests of 1-bit Adam and 1-bit LAMB: a rank's training in ZeRO stage 0, and
// its momenta before each sum.

#include <map>
#include <memory>
#include <vector>

#include "zero/stages/step.h"
#include "zero/states/compression_watch.h"
#include "zero/testing/model_case.h"

namespace zero::testing {

// Keeps the momenta of a rank before their sum, by segment.
struct MomentaWatch final : CompressionWatch {
  std::map<std::size_t, std::vector<double>> momenta;
  void before(std::size_t segment, const Tensor& values) override {
    momenta[segment] = to_doubles(values);
  }
  void after(std::size_t, const Tensor&, const collectives::CompressedAllReduce&) override {}
};

struct OneBitTraining {
  static constexpr double divisor = 48;
  MomentaWatch watch;
  RankModel model;
  GradientPlan plan;
  FlatStates states;
  StepOptions options;
  std::unique_ptr<Step> step;

  OneBitTraining(machine::World& world, machine::Degrees degrees, machine::Dtype dtype,
                 const Rule& rule, double clip = std::numeric_limits<double>::infinity(),
                 machine::Dtype gradients = machine::Dtype::float32)
      : model(world, degrees),
        plan(gradient_plan(model.list(), dtype, model.grid, divisor, {}, gradients)),
        states(world.device(), plan, model.list(), {.reduce_bucket_size = 100}),
        options{.rule = rule, .clip_norm = clip, .gradient_compression = {.watch = &watch}} {
    model.set_values();
    step = make_step(0, states, plan, model.communicators(), options);
  }
  RangeStates kept() {
    RangeStates all;
    step->optimizer().visit(false, [&](Range, const RangeStates& states) { all = states; });
    return all;
  }
};

// Copies the states of a training into one that is fresh, as a checkpoint does.
inline void copy_states(const RangeStates& from, const RangeStates& to) {
  for (const auto& [a, b] : {std::pair(from.values, to.values),
                             {from.master, to.master},
                             {from.first_moment, to.first_moment},
                             {from.second_moment, to.second_moment},
                             {from.fresh_variance, to.fresh_variance}})
    if (a) from_doubles(b, to_doubles(a));
}

}  // namespace zero::testing
