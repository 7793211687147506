#pragma once
// ZeRO stage 1, P_os: Rajbhandari et al. 2020, arXiv:1910.02054. Rank i of dp keeps the optimizer's
// states of the i-th of dp equal ranges only: gradients are reduce-scattered to their owners, each
// owner updates its range, and the updated values are all-gathered. The bytes are those of an
// all-reduce when values and gradients have the same width; the states take 1/dp of the memory.
//
// Both collectives work in place: a rank's shard is its own part of the flat buffers.

#include "zero/step.h"

namespace zero {

class Stage1 : public Step {
 public:
  Stage1(FlatStates& states, const GradientPlan& plan, Communicators communicators,
         StepOptions options)
      : Step(states, plan, communicators, std::move(options), true) {}

  void gather_gradients() override {
    if (plan_.dp == 1) return;
    communicators_.dp->all_gather(states_.gradients(owned_), states_.gradients(),
                                  options_.all_gather);
  }

 private:
  void reduce_over_dp() override {
    communicators_.dp->reduce_scatter(states_.gradients(), states_.gradients(owned_),
                                      options_.reduce_scatter);
  }
  void publish_values() override {
    communicators_.dp->all_gather(states_.values(owned_), states_.values(), options_.all_gather);
  }
};

}  // namespace zero
