#pragma once
// A reduce-scatter of codes by all-to-all, then an all-gather of the sums, coded again (qgZ of
// ZeRO++: Wang et al. 2023, arXiv:2306.10209, section 4.3). In one hop, between all N ranks, each
// value is quantized twice, where a ring of codes would do it N - 1 times; a rank sends N - 1 codes
// of ceil(n / N) elements, and as many to gather. In two hops, as there, first between the g ranks
// that are near each other (communicator.h, inner()), then between the N / g that hold the sums of
// the same shares: three quantizations, g - 1 times N / g codes inside and only N / g - 1 between
// hosts.
//
// Who reduces a share, or a part of it, keeps what the next code does not carry, and adds it to the
// next sum (1-bit Adam, Tang et al. 2021, arXiv:2102.02888: errors of worker and server).
//
// |sum - exact| <= the code's errors for the ranks' values, for the sums that the first of two hops
// leaves, and for the whole sum, and gamma_N of float on what is sent.

#include <vector>

#include "collectives/compression/code.h"
#include "collectives/compression/compressed_all_reduce.h"

namespace collectives {

class QuantizedReduceScatter final : public CompressedAllReduce {
 public:
  static constexpr std::string_view paper = "Wang et al. 2023 (ZeRO++), arXiv:2306.10209";
  QuantizedReduceScatter(const CompressionSetup& setup, std::unique_ptr<Code> code, bool two_hops);

  std::vector<double> held_back() const override;

 private:
  // The ranks that exchange codes, and what this rank holds of the sum after it: the shares `ids`,
  // one after the other, each in share_ floats.
  struct Hop {
    int ranks = 1;
    std::shared_ptr<const TrafficMatrix> traffic;  // none: all ranks
    std::vector<int> ids;
    machine::Tensor residual;
  };

  void exchange(float* values, float* out) override;
  void forget() override;
  void add_hop(int ranks, int stride);
  ChunkRange share(int of) const;  // all of share_ elements but the last ones

  std::unique_ptr<Code> code_;
  std::int64_t share_, bytes_;           // the longest share; its code
  machine::Tensor outgoing_, gathered_;  // a code for, of each rank
  machine::Tensor coded_sum_;
  machine::Tensor sum_;  // float, of one share
  std::vector<Hop> hops_;
};

}  // namespace collectives
