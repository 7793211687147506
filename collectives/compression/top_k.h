#pragma once
// Top-k: a rank sends its k elements of largest magnitude, and all ranks gather them as pairs of
// index and value (Lin et al. 2018, "Deep Gradient Compression", arXiv:1712.01887, of which this is
// the sparsification, without momentum correction and clipping).
//
// As there, a sample of the values finds a threshold first, so that only few elements need to be
// ordered; unlike there, the selection is exact. Of equal magnitudes the lower indices are taken.
// What is sent is the value itself: kept plus sent is in + residual, bit for bit.
//
// NaN counts as the largest magnitude, before infinity: they are sent first and reach every rank,
// each in its own place. Beyond k of them, the rest waits in the residual for the next run.
//
// Every rank receives k (N - 1) pairs of 8 bytes: more than a ring's 8 n (N - 1) / N when k > n /
// N.

#include "collectives/compression/compressed_all_reduce.h"

namespace collectives {

// The indices of the k elements of largest magnitude, ascending; 1 <= k <= count < 2^32.
void select_top_k(const float* values, std::int64_t count, std::int64_t k, std::uint32_t* indices);

class TopK final : public CompressedAllReduce {
 public:
  static constexpr std::string_view paper = "Lin et al. 2018, arXiv:1712.01887";
  explicit TopK(const CompressionSetup& setup);

 private:
  void exchange(float* values, float* out) override;
  std::int64_t k_;
  machine::Tensor mine_, all_;  // of each rank k indices, then k values
};

}  // namespace collectives
