#pragma once
// Stage 0, plain data parallelism: every rank holds all states, sums all gradients and updates all
// values. The replicas stay equal because all-reduce gives every rank the same bits.

#include "machine/device/kernels.h"
#include "zero/stages/step.h"

namespace zero {

class DataParallel final : public Step {
 public:
  explicit DataParallel(StepContext context) : Step(std::move(context)) {
    make_optimizer([&](Range range) { return context_.states.values(range); });
  }
  ~DataParallel() override { finish(); }

 private:
  void reduce_over_dp(const Bucket& bucket, const Tensor& gradients, const Tensor& wire) override {
    if (bucket.shards == 1) return;
    const Tensor sums = sum_over_dp(bucket, gradients, wire);
    if (wire.dtype() != gradients.dtype()) transfer_kernels().cast(sums, gradients);
  }
};

}  // namespace zero
