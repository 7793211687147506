#pragma once
// The optimizer step of one rank: reduce the gradients, measure their norm, clip, update, publish.
//
//   GradientPlan plan = gradient_plan(parameters, dtype, grid, tokens);
//   FlatStates states(device, plan, parameters);            // then set the initial values
//   auto step = make_step(stage, states, plan, {&tp, &pp, &dp, &embedding}, options);
//   … backward accumulates into parameter.gradient …
//   StepResult result = step->step();
//
// In this order: sum over the embedding group, over tp, over dp, each as the plan says; then the
// global norm; then the update, whose gradient scale holds the plan's divisor and the clipping;
// then the values are published over dp, and the gradients are zero again.
//
// A ZeRO stage is a subclass that says which part of the flat buffers a rank owns, how gradients
// are summed over dp into that part, and how values get from their owners to everyone. To add a
// stage: a header like stage1.h, an arm in make_step, its volume and memory in cost.cpp. Stage 2
// would free what it does not own of the gradients, and sum a bucket as soon as backward has filled
// it.
//
// The squares are added up shard by shard and the shards in order, whatever is sharded, so all
// stages see the same norm and take the same step, bit for bit, where all-reduce and reduce-scatter
// sum in the same order: direct does, ring among more than two does not.

#include <array>
#include <limits>
#include <memory>
#include <string>

#include "collectives/communicator.h"
#include "zero/optimizer.h"
#include "zero/partition.h"

namespace zero {

// Null where the group has one member, or does not have this rank.
struct Communicators {
  collectives::Communicator* tp = nullptr;
  collectives::Communicator* pp = nullptr;
  collectives::Communicator* dp = nullptr;
  collectives::Communicator* embedding = nullptr;
};

struct StepOptions {
  Rule rule = AdamW{};
  double clip_norm = std::numeric_limits<double>::infinity();  // of the global norm; infinity: off
  // Empty: the communicator's default. The dp group's three, and the all-reduces of the extra
  // groups.
  std::string all_reduce = {}, reduce_scatter = {}, all_gather = {};
};

struct StepResult {
  // Of the whole model's gradient, divided by the plan's divisor, before clipping: the square root
  // of the sum of squares in double. Infinite or NaN when any rank's gradient is: then nothing is
  // updated.
  double gradient_norm = 0;
  double clip_factor = 1;  // min(1, clip_norm / gradient_norm); no epsilon is added
  bool updated = false;    // the same on all ranks
};

class Step {
 public:
  virtual ~Step() = default;

  // Both of a step, for oracles that look at the summed gradients between. Each collective over all
  // ranks of the grid; reduce once, then update once.
  void reduce();
  StepResult update();
  StepResult step() {
    reduce();
    return update();
  }
  // Between reduce and update: makes every parameter.gradient the whole sum (not yet divided),
  // where a rank holds only its shard of it. For oracles; its traffic is not part of a step.
  virtual void gather_gradients() {}

  Optimizer& optimizer() { return optimizer_; }  // of the owned range
  Range owned() const { return owned_; }
  const GradientPlan& plan() const { return plan_; }

 protected:
  // sharded: each rank of dp owns its shard of the optimizer's states, else all of them.
  // Throws std::invalid_argument for a clip_norm that is not positive; std::logic_error when a
  // group that the plan reduces over has no communicator, or one of another size.
  Step(FlatStates& states, const GradientPlan& plan, Communicators communicators,
       StepOptions options, bool sharded);

  virtual void reduce_over_dp() = 0;
  virtual void publish_values() = 0;

  FlatStates& states_;
  const GradientPlan plan_;
  const Communicators communicators_;
  const StepOptions options_;
  const bool sharded_;  // false where dp is 1
  const Range owned_;

 private:
  collectives::Communicator* communicator(Over over) const;
  void check(collectives::Communicator* communicator, std::string_view group, int size) const;
  double sum_of_squares();
  std::vector<double> sum_over(collectives::Communicator* communicator, std::vector<double> mine);

  Optimizer optimizer_;
  bool reduced_ = false;
  machine::Tensor squares_;   // double, one for each segment of each owned shard
  machine::Tensor partials_;  // double, one for each owned shard
  machine::Tensor gathered_;  // double, the partials of every rank of the largest group
};

// stage 0: data_parallel.h, stage 1: stage1.h. Throws std::invalid_argument for another.
inline constexpr int num_stages = 2;
std::unique_ptr<Step> make_step(int stage, FlatStates& states, const GradientPlan& plan,
                                Communicators communicators, StepOptions options);

}  // namespace zero
