#pragma once
// Threshold: where an element's magnitude has reached the threshold, a rank sends plus or minus the
// threshold, once a run, and keeps the rest (Strom 2015, "Scalable distributed DNN training using
// commodity GPU cloud computing", doi:10.21437/Interspeech.2015-354). As there, a sent element is
// one word of 32 bits: its index, and its sign in the last bit.
//
// How many are sent depends on the values. Ranks first gather their counts, then as many words of
// each as the busiest has: a rank receives 4 (N - 1) (1 + most) bytes.
//
// NaN and infinity have no such word: if any rank has one, all elements of the sum are NaN on all
// ranks, and those elements' residual is zero. Values that stay above the threshold run after run
// pile up in the residual: the threshold must be above what a run adds to an element.

#include "collectives/compression/compressed_all_reduce.h"

namespace collectives {

class Threshold final : public CompressedAllReduce {
 public:
  static constexpr std::string_view paper = "Strom 2015, doi:10.21437/Interspeech.2015-354";
  explicit Threshold(const CompressionSetup& setup);

 private:
  void exchange(float* values, float* out) override;
  machine::Tensor my_count_, counts_;
  machine::Tensor mine_, all_;  // words, as large as any run has needed
  std::vector<std::uint32_t> selected_;
};

}  // namespace collectives
