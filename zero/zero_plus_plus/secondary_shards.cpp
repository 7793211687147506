#include "zero/zero_plus_plus/secondary_shards.h"

namespace zero {

using machine::Category;
using machine::Tensor;

machine::Group secondary_group(const machine::Group& dp, int size) {
  const auto first = dp.members.begin() + dp.index / size * size;
  return {"hpz", {first, first + size}, dp.index % size};
}

std::int64_t secondary_elements(const Bucket& bucket, int size) {
  return bucket.persistent ? 0 : bucket.range.size() / size;
}

SecondaryShards::SecondaryShards(machine::Device& device, machine::Dtype dtype,
                                 const Layout& layout, collectives::Communicator& group)
    : group_(group), has_(layout.buckets.size()) {
  std::int64_t elements = 0;
  for (const Bucket& bucket : layout.buckets) elements += secondary_elements(bucket, group.size());
  all_ = Tensor(device, dtype, {elements}, Category::parameters);
  elements = 0;
  for (const Bucket& bucket : layout.buckets) {
    const std::int64_t own = secondary_elements(bucket, group.size());
    shards_.push_back(all_.slice(elements, {own}));
    elements += own;
  }
}

bool SecondaryShards::take(std::size_t bucket) {
  if (has_[bucket]) return false;
  has_[bucket] = true;
  return true;
}

void SecondaryShards::fill(std::size_t bucket, const Tensor& whole, machine::Stream& stream) const {
  const Tensor& own = shards_[bucket];
  stream.copy(own.data(), whole.slice(own.size() * group_.rank(), {own.size()}).data(),
              own.bytes());
}

void SecondaryShards::gather(std::size_t bucket, const Tensor& whole,
                             std::string_view algorithm) const {
  group_.all_gather(shards_[bucket], whole, algorithm);
}

}  // namespace zero
