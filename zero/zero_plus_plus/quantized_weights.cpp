#include "zero/zero_plus_plus/quantized_weights.h"

#include <algorithm>

#include "machine/device/int_blocks/block_codes.h"

namespace zero {

using machine::Tensor;

namespace {

constexpr int bits = 8;

}  // namespace

std::int64_t weight_code_bytes(const Layout& layout, const Bucket& bucket) {
  return machine::code_bytes(bits, layout.shard_elements(bucket));
}

std::size_t quantized_weights_bytes(const Layout& layout) {
  std::int64_t most = 0;
  for (const Bucket& bucket : layout.buckets)
    if (!bucket.persistent && bucket.shards > 1)
      most = std::max(most, bucket.shards * weight_code_bytes(layout, bucket));
  return static_cast<std::size_t>(most);
}

QuantizedWeights::QuantizedWeights(machine::Device& device, const Layout& layout)
    : codes_(device, machine::Dtype::uint8,
             {static_cast<std::int64_t>(quantized_weights_bytes(layout))},
             machine::Category::buffers) {}

void QuantizedWeights::gather(collectives::Communicator& holders, const Tensor& own,
                              const Tensor& whole, machine::Stream& stream,
                              std::string_view algorithm) const {
  const std::int64_t bytes = machine::code_bytes(bits, own.size());
  const Tensor all = codes_.slice(0, {bytes * holders.size()}),
               mine = all.slice(bytes * holders.rank(), {bytes});
  machine::encode_blocks(stream, own, 1, bits, mine);
  holders.all_gather(mine, all, algorithm);
  machine::decode_blocks(stream, all, 1, bits, whole, holders.size());
}

}  // namespace zero
