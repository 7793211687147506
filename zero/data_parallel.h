#pragma once
// Stage 0, plain data parallelism: every rank holds all states, sums all gradients and makes the
// whole update. The replicas stay equal because all-reduce gives every rank the same bits.

#include "zero/step.h"

namespace zero {

class DataParallel : public Step {
 public:
  DataParallel(FlatStates& states, const GradientPlan& plan, Communicators communicators,
               StepOptions options)
      : Step(states, plan, communicators, std::move(options), false) {}

 private:
  void reduce_over_dp() override {
    communicators_.dp->all_reduce(states_.gradients(), states_.gradients(), options_.all_reduce);
  }
  void publish_values() override {}  // everyone has made the same update
};

}  // namespace zero
