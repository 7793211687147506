#pragma once
// ZeRO stage 2, P_os+g: Rajbhandari et al. 2020, arXiv:1910.02054, sections 5.2 and 7.2. In
// addition to stage 1's states a rank shards the summed gradients. Backward writes gradients to
// buffers of the buckets that it has begun. A complete bucket is reduce-scattered and added to the
// owners' shards, and its buffer is freed. So every micro-batch sends the bytes that stage 1 sends
// once per step. With pipelines every backward of a chunk does so with the chunk's buckets,
// whatever number of micro-batches is in flight.
//
// With overlap_comm the previous bucket is reduced at the same time, and a micro-batch's last
// bucket while the next micro-batch begins. This needs one more buffer.

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
  // Returns the offset of a range of the flat buffers among the rank's own shards, which are
  // contiguous.
  std::int64_t offset_in_shards(Range range) const;

 private:
  Tensor take_gradients(std::size_t index) override;
  void reduce_over_dp(const Bucket& bucket, const Tensor& gradients, const Tensor& wire) override;
  void clear_gradients() override;
  Tensor zeros(machine::Shape shape) const;

  Tensor shards_;             // [own_elements], summed
  std::vector<Tensor> open_;  // by bucket: gradients that backward has begun
  Tensor whole_;              // gathered for oracles, until update
};

}  // namespace zero
