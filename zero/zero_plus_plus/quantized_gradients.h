#pragma once
// qgZ of ZeRO++: Wang et al. 2023, arXiv:2306.10209, section 3.3. A reduce-scatter of gradients in
// 4 bits, with a scale for each block of 64 elements (block_codes.h), in two all-to-alls. Of d
// ranks, h neighbours share a host:
//
//   near  a rank sends each of the h near ranks its codes of the d/h shards of that rank and of the
//         ranks with its place on the other hosts, and sums the codes of h ranks in float;
//   far   it codes the d/h sums again, sends each to its owner, and sums the codes of d/h ranks.
//
// A shard of n elements is c = n/2 + n/32 bytes. A rank sends (h - 1) d/h c bytes within its host
// and (d/h - 1) c between hosts. With one host there is one hop, and d - 1 codes.
//
// |sum - exact| <= half a step of each coded block: over the scales s of the d ranks' gradients and
// of the d/h sums, sum of s (1/2 + 7 * 2^-22), and gamma of the additions in float. The sums are
// added in the order of ranks, so all repetitions have the same bits. A block with a value that is
// not finite is NaN on its owner, so the step is skipped.
//
// A block belongs to one parameter, because parameters and shards begin at multiples of 64.
// Gradients that ranks of tp or two stages replicate keep the same bits there.

#include <cstddef>
#include <cstdint>

#include "collectives/communicator/communicator.h"
#include "machine/world/world.h"
#include "zero/states/layout.h"
#include "zero/zero_plus_plus/options.h"

namespace zero {

// Returns the neighbours of a group that share a host, or all if hosts have different numbers.
int ranks_of_a_host(const machine::World& world, const machine::Group& group);

// Returns this rank's groups of the hops, with the names "qgz_near" and "qgz_far". near: a divisor
// of dp's size.
machine::Group near_group(const machine::Group& dp, int near);
machine::Group far_group(const machine::Group& dp, int near);

// Returns the bytes of the codes of a bucket's shard, and of the buffers for the largest bucket.
std::int64_t gradient_code_bytes(const Layout& layout, const Bucket& bucket);
std::size_t quantized_gradients_bytes(const Layout& layout, int near);

class QuantizedGradients {
 public:
  // near, far: null if there is one hop. Communicators must outlive this.
  QuantizedGradients(machine::Device& device, const Layout& layout, collectives::Communicator& dp,
                     collectives::Communicator* near, collectives::Communicator* far);

  // Sums the gradients of a bucket over dp into `own`, this rank's shard, in their dtype. own may
  // be part of gradients. Queues its work on the stream; apart: that of dp's link (run_apart).
  void sum(const machine::Tensor& gradients, const machine::Tensor& own, machine::Stream& stream,
           bool apart) const;

 private:
  void exchange(collectives::Communicator& group, const machine::Tensor& out,
                const machine::Tensor& in, machine::Stream& stream, bool apart) const;

  collectives::Communicator& dp_;
  collectives::Communicator *near_, *far_;
  machine::Tensor outgoing_, incoming_;  // codes of the largest bucket
  machine::Tensor sums_;                 // float, after the first of two hops
};

}  // namespace zero
