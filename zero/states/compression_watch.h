#pragma once
// Sees every compressed sum of a step over dp, for oracles: of gradients
// (stages/compressed_reduction.h) or of momenta (one_bit/one_bit_momenta.h).

#include <cstddef>

#include "collectives/compression/compressed_all_reduce.h"
#include "machine/device/tensor.h"

namespace zero {

// segment: of Layout::segments.
class CompressionWatch {
 public:
  virtual ~CompressionWatch() = default;
  virtual void before(std::size_t segment, const machine::Tensor& values) = 0;
  virtual void after(std::size_t segment, const machine::Tensor& sums,
                     const collectives::CompressedAllReduce& sum) = 0;
};

}  // namespace zero
