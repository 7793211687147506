#include "zero/zero_plus_plus/quantized_gradients.h"

#include <algorithm>

#include "machine/device/int_blocks/block_codes.h"
#include "zero/zero_plus_plus/secondary_shards.h"

namespace zero {

using collectives::Communicator;
using machine::Category;
using machine::Dtype;
using machine::Tensor;

namespace {

constexpr int bits = 4;

// Returns the elements of the longest shard that is reduced over dp.
std::int64_t longest_shard(const Layout& layout) {
  std::int64_t longest = 0;
  for (const Bucket& bucket : layout.buckets)
    if (!bucket.frozen && bucket.shards > 1)
      longest = std::max(longest, layout.shard_elements(bucket));
  return longest;
}

}  // namespace

int ranks_of_a_host(const machine::World& world, const machine::Group& group) {
  const auto host = [&](int i) -> const std::string& {
    return world.host(group.members[static_cast<std::size_t>(i)]);
  };
  int near = 1;
  while (near < group.size() && host(near) == host(0)) ++near;
  for (int i = 0; i < group.size(); ++i)
    if (group.size() % near != 0 || host(i) != host(i - i % near)) return group.size();
  return near;
}

machine::Group near_group(const machine::Group& dp, int near) {
  machine::Group group = secondary_group(dp, near);
  group.name = "qgz_near";
  return group;
}

machine::Group far_group(const machine::Group& dp, int near) {
  machine::Group group{"qgz_far", {}, dp.index / near};
  for (int i = dp.index % near; i < dp.size(); i += near)
    group.members.push_back(dp.members[static_cast<std::size_t>(i)]);
  return group;
}

std::int64_t gradient_code_bytes(const Layout& layout, const Bucket& bucket) {
  return machine::code_bytes(bits, layout.shard_elements(bucket));
}

std::size_t quantized_gradients_bytes(const Layout& layout, int near) {
  const std::int64_t shard = longest_shard(layout), hosts = layout.shards / near;
  const std::int64_t sums =
      hosts > 1 ? hosts * shard * static_cast<std::int64_t>(sizeof(float)) : 0;
  return static_cast<std::size_t>(2 * layout.shards * machine::code_bytes(bits, shard) + sums);
}

QuantizedGradients::QuantizedGradients(machine::Device& device, const Layout& layout,
                                       Communicator& dp, Communicator* near, Communicator* far)
    : dp_(dp), near_(near), far_(far) {
  const std::int64_t shard = longest_shard(layout);
  const std::int64_t codes = dp.size() * machine::code_bytes(bits, shard);
  outgoing_ = Tensor(device, Dtype::uint8, {codes}, Category::buffers);
  incoming_ = Tensor(device, Dtype::uint8, {codes}, Category::buffers);
  if (far) sums_ = Tensor(device, Dtype::float32, {far->size() * shard}, Category::buffers);
}

void QuantizedGradients::sum(const Tensor& gradients, const Tensor& own, machine::Stream& stream,
                             bool apart) const {
  const std::int64_t bytes = machine::code_bytes(bits, own.size());
  const int hosts = far_ ? far_->size() : 1;
  const auto codes = [&](const Tensor& of, int number) { return of.slice(0, {number * bytes}); };
  const Tensor out = codes(outgoing_, dp_.size()), in = codes(incoming_, dp_.size());
  // Shard k h + j is coded as number j d/h + k: the shards of near rank j follow each other.
  machine::encode_blocks(stream, gradients, dp_.size(), bits, out, dp_.size() / hosts);
  exchange(near_ ? *near_ : dp_, out, in, stream, apart);
  if (!far_) return machine::decode_blocks(stream, in, dp_.size(), bits, own, 1);
  const Tensor sums = sums_.slice(0, {hosts * own.size()});
  machine::decode_blocks(stream, in, dp_.size() / hosts, bits, sums, hosts);
  const Tensor far_out = codes(outgoing_, hosts), far_in = codes(incoming_, hosts);
  machine::encode_blocks(stream, sums, hosts, bits, far_out);
  exchange(*far_, far_out, far_in, stream, apart);
  machine::decode_blocks(stream, far_in, hosts, bits, own, 1);
}

// The work of dp's link is in its own stream, and the other groups have streams, too.
void QuantizedGradients::exchange(Communicator& group, const Tensor& out, const Tensor& in,
                                  machine::Stream& stream, bool apart) const {
  if (!apart || &group == &dp_) return group.all_to_all(out, in);
  group.stream().wait(*stream.record());
  stream.wait(*group.run_apart([&] { group.all_to_all(out, in); }));
}

}  // namespace zero
