#pragma once
// qwZ of ZeRO++: Wang et al. 2023, arXiv:2306.10209, section 3.1. Ranks gather the values of a
// bucket over dp in 8 bits, with a scale for each block of 64 elements (block_codes.h). Every rank
// decodes the same codes, its own shard too, so all compute with the same values. A shard of n
// elements is n + n / 32 bytes on the wire, in place of n E.
//
// |used value - value| <= scale (1/2 + 127 * 2^-22), and a rounding to the values' dtype; scale is
// at most the largest magnitude of the block over 127, times 1 + 2^-7. Master values, states and
// persistent buckets are not coded, and uses outside of passes (evaluation, checkpoints) gather the
// values themselves.
//
// A block belongs to one parameter, because parameters and shards begin at multiples of 64. So a
// parameter that ranks of tp replicate has the same codes on all of them.

#include <cstddef>
#include <string_view>

#include "collectives/communicator/communicator.h"
#include "zero/states/layout.h"

namespace zero {

// Returns the bytes of the codes of a bucket's shard, and of the buffer for the largest bucket.
std::int64_t weight_code_bytes(const Layout& layout, const Bucket& bucket);
std::size_t quantized_weights_bytes(const Layout& layout);

class QuantizedWeights {
 public:
  QuantizedWeights(machine::Device& device, const Layout& layout);

  // Gathers the shards `own` of all holders into `whole`, of which own may be the rank's part.
  // Queues its work on the stream.
  void gather(collectives::Communicator& holders, const machine::Tensor& own,
              const machine::Tensor& whole, machine::Stream& stream,
              std::string_view algorithm) const;

 private:
  machine::Tensor codes_;  // of the largest bucket
};

}  // namespace zero
