#pragma once
// ZeRO stage 1, P_os: Rajbhandari et al. 2020, arXiv:1910.02054. Rank i of dp keeps only the
// optimizer's states of the i-th of dp equal shards of every bucket: gradients are reduce-scattered
// to their owners, each owner updates its shards, and the updated values are all-gathered. The
// bytes are those of an all-reduce when values and gradients have the same width; the states take
// 1/dp of the memory.
//
// Both collectives work in place: a rank's shard is its own part of the flat buffers.

#include "machine/device/kernels.h"
#include "zero/stages/step.h"

namespace zero {

class Stage1 final : public Step {
 public:
  explicit Stage1(StepContext context) : Step(std::move(context)) {
    make_optimizer([&](Range range) { return context_.states.values(range); });
  }
  ~Stage1() override { finish(); }

  void gather_gradients() override {
    for (const Bucket& bucket : layout().buckets) {
      if (bucket.frozen || bucket.range.size() == 0 || bucket.shards == 1) continue;
      context_.holders(bucket)->all_gather(
          context_.states.gradients(layout().shard(bucket, dp_rank())),
          context_.states.gradients(bucket.range), context_.options.all_gather);
    }
  }

 private:
  void reduce_over_dp(const Bucket& bucket, const Tensor& gradients, const Tensor& wire) override {
    if (bucket.shards == 1) return;
    const std::int64_t shard = layout().shard_elements(bucket);
    const Tensor own = sum_over_dp(bucket, gradients, wire);
    if (wire.dtype() != gradients.dtype())
      transfer_kernels().cast(own, gradients.slice(shard * context_.shard_index(bucket), {shard}));
  }
};

}  // namespace zero
