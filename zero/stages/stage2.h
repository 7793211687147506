#pragma once
// ZeRO stage 2, P_os+g: Rajbhandari et al. 2020, arXiv:1910.02054, sections 5.2 and 7.2. Beside
// stage 1's states a rank keeps the summed gradients of its shards only. While backward makes
// gradients they lie in buffers of the buckets that it has begun; a bucket that is complete is
// reduce-scattered and added to the owners' shards, and its buffer goes. So every micro-batch
// sends what stage 1 sends once.
//
// With overlap_comm the bucket before is under way meanwhile, a micro-batch's last one while the
// next begins: one buffer more.
//
// Refuses pipelines: with pp above 1 the gradients of a tied embedding could not be summed over the
// stages for one micro-batch without holding it up (DeepSpeed refuses the same).

#include "zero/stages/step.h"

namespace zero {

class Stage2 : public Step {
 public:
  explicit Stage2(StepContext context);
  ~Stage2() override { finish(); }

  void before_gradients(const Part& part) override;
  void gather_gradients() override;

 protected:
  Tensor gradients(Range range) const override;
  // Of a range of the flat buffers in a rank's own shards, one behind the other.
  std::int64_t offset_in_shards(Range range) const;

 private:
  Tensor take_gradients(std::size_t bucket) override;
  void reduce_over_dp(const Bucket& bucket, const Tensor& gradients, const Tensor& wire) override;
  void clear_gradients() override;
  Tensor zeros(machine::Shape shape) const;

  Tensor shards_;             // [elements / dp], summed
  std::vector<Tensor> open_;  // by bucket: what backward has begun
  Tensor whole_;              // gathered for oracles, until update
};

}  // namespace zero
