#pragma once
// hpZ of ZeRO++: Wang et al. 2023, arXiv:2306.10209, section 3.2. h neighbours of dp, which should
// share a host, are a secondary group. Besides its shard of 1/dp a rank holds a secondary shard of
// 1/h of the values, in their dtype. The first gather of a bucket in a micro-batch (its forward)
// runs over all of dp, and fills the secondary shards after an update. All further gathers
// (backward and recomputation) run inside the secondary group.
//
// The values are the same bits, so no result changes. Memory grows by 1/h of the values.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "zero/states/layout.h"

namespace zero {

// Returns this rank's secondary group, with the name "hpz". size: a divisor of dp's.
machine::Group secondary_group(const machine::Group& dp, int size);

// Returns the elements of a rank's secondary shard of a bucket. Buckets that are persistent have
// none.
std::int64_t secondary_elements(const Bucket& bucket, int size);

class SecondaryShards {
 public:
  // Collective objects must outlive this.
  SecondaryShards(machine::Device& device, machine::Dtype dtype, const Layout& layout,
                  collectives::Communicator& group);

  collectives::Communicator& group() const { return group_; }
  const machine::Tensor& shard(std::size_t bucket) const { return shards_[bucket]; }

  // Returns whether the shards of a bucket have its values.
  bool has(std::size_t bucket) const { return has_[bucket]; }
  // The values have changed.
  void expire() { has_.assign(has_.size(), false); }
  // Returns whether the shard must be filled from the next gather over dp, and counts it as filled.
  bool take(std::size_t bucket);

  // Queue work on a stream. whole: the values of the bucket.
  void fill(std::size_t bucket, const machine::Tensor& whole, machine::Stream& stream) const;
  void gather(std::size_t bucket, const machine::Tensor& whole, std::string_view algorithm) const;

 private:
  collectives::Communicator& group_;
  machine::Tensor all_;
  std::vector<machine::Tensor> shards_;  // by bucket, parts of all_
  std::vector<bool> has_;                // by bucket
};

}  // namespace zero
