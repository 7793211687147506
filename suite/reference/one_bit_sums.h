#pragma once
// Judges every sum of momenta of 1-bit Adam (zero/one_bit/one_bit_adam.h) by a second
// implementation: plain loops over the momenta of all ranks, bit for bit. A rank adds its error to
// its momentum, and sends each share as signs and the root of its mean square, which is float. The
// rank of a share adds the values in the order of ranks and its own error, and codes the sum
// again. The errors that remain belong to the next sum.

#include <map>
#include <tuple>
#include <vector>

#include "harness/judge/judge.h"
#include "machine/world/world.h"
#include "zero/states/compression_watch.h"

namespace suite {

class OneBitSums final : public zero::CompressionWatch {
 public:
  // dp: the ranks of a sum. All must outlive this. The judged errors must be zero at first.
  OneBitSums(harness::Judge& judge, machine::World& world, machine::Group dp);

  void before(std::size_t segment, const machine::Tensor& momenta) override;
  // Collective over dp.
  void after(std::size_t index, const machine::Tensor& sums,
             const collectives::CompressedAllReduce& sum) override;

  // This rank's momenta of a segment before the last sum.
  const std::vector<double>& momenta(std::size_t segment) const {
    return segments_.at(segment).momenta;
  }

 private:
  struct Segment {
    std::vector<double> momenta;
    std::vector<std::vector<float>> of_workers;  // errors, by rank
    std::vector<float> of_server;                // of all shares
    int sums = 0;
  };

  harness::Judge& judge_;
  machine::World& world_;
  machine::Group dp_;
  std::map<std::size_t, Segment> segments_;
};

}  // namespace suite
