#pragma once
// A reduce-scatter of codes by one all-to-all, then an all-gather of the sums, coded again: each
// value is quantized twice, however many ranks there are, where a ring of codes would do it N - 1
// times (qgZ of ZeRO++: Wang et al. 2023, arXiv:2306.10209; there 4 bits an element, here what
// the code has; one hop between all ranks here, not one inside hosts and one between them). A rank
// sends 2 (N - 1) codes of ceil(n / N) elements.
//
// The rank that reduces a share keeps what the second code does not carry, and adds it to the next
// sum (1-bit Adam, Tang et al. 2021, arXiv:2102.02888: errors of worker and server).
//
// |sum - exact| <= the sum over ranks of the code's error for their values, and its error for the
// sum, and gamma_N of float on what is sent.

#include "collectives/compression/code.h"
#include "collectives/compression/compressed_all_reduce.h"

namespace collectives {

class QuantizedReduceScatter final : public CompressedAllReduce {
 public:
  static constexpr std::string_view paper = "Wang et al. 2023 (ZeRO++), arXiv:2306.10209";
  QuantizedReduceScatter(machine::World& world, Communicator& communicator, std::int64_t count,
                         const CompressionOptions& options, std::unique_ptr<Code> code);

  std::vector<double> held_back() const override;

 private:
  void exchange(float* values, float* out) override;
  void forget() override;
  ChunkRange share(int of) const;  // all of share_ elements but the last ones

  std::unique_ptr<Code> code_;
  std::int64_t share_, bytes_;           // the longest share; its code
  machine::Tensor outgoing_, gathered_;  // a code for, of each rank
  machine::Tensor coded_sum_;
  machine::Tensor sum_, sum_residual_;  // float, of the share that this rank reduces
};

}  // namespace collectives
