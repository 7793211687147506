#pragma once
// ZeRO stage 1, P_os: Rajbhandari et al. 2020, arXiv:1910.02054. Rank i of dp keeps the optimizer's
// states of the i-th of dp equal shares of every bucket only: gradients are reduce-scattered to
// their owners, each owner updates its shares, and the updated values are all-gathered. The bytes
// are those of an all-reduce when values and gradients have the same width; the states take 1/dp of
// the memory.
//
// Both collectives work in place: a rank's share is its own part of the flat buffers.

#include "machine/device/kernels.h"
#include "zero/stages/step.h"

namespace zero {

class Stage1 final : public Step {
 public:
  Stage1(FlatStates& states, const GradientPlan& plan, Communicators communicators,
         StepOptions options)
      : Step(1, states, plan, communicators, std::move(options)) {
    make_optimizer([&](Range range) { return states_.values(range); });
  }
  ~Stage1() override { finish(); }

  void gather_gradients() override {
    if (plan_.dp == 1) return;
    for (const Bucket& bucket : layout().buckets) {
      if (bucket.frozen || bucket.range.size() == 0) continue;
      communicators_.dp->all_gather(states_.gradients(layout().shard(bucket, dp_rank())),
                                    states_.gradients(bucket.range), options_.all_gather);
    }
  }

 private:
  void reduce_over_dp(const Bucket& bucket, const machine::Tensor& gradients,
                      const machine::Tensor& wire) override {
    if (plan_.dp == 1) return;
    const std::int64_t share = layout().share(bucket);
    const machine::Tensor own = wire.slice(share * dp_rank(), {share});
    const bool narrows = wire.dtype() != gradients.dtype();
    if (narrows) kernels().cast(gradients, wire);
    communicators_.dp->reduce_scatter(wire, own, options_.reduce_scatter);
    if (narrows) kernels().cast(own, gradients.slice(share * dp_rank(), {share}));
  }
};

}  // namespace zero
