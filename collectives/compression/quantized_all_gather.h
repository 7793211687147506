#pragma once
// Every rank gathers the codes of all ranks and sums them: one step, one quantization of each value
// (as gradients are exchanged in Dettmers 2015, arXiv:1511.04561). A rank receives N - 1 codes of
// all n values, so the volume grows with N, and beyond 4 (of 8 bits) or 8 ranks a ring of floats
// sends less.
//
// |sum - exact| <= the sum over ranks of the code's error, and gamma_N of float on what is sent.

#include "collectives/compression/code.h"
#include "collectives/compression/compressed_all_reduce.h"

namespace collectives {

class QuantizedAllGather final : public CompressedAllReduce {
 public:
  QuantizedAllGather(const CompressionSetup& setup, std::unique_ptr<Code> code);

 private:
  void exchange(float* values, float* out) override;
  std::unique_ptr<Code> code_;
  machine::Tensor mine_, all_;
};

}  // namespace collectives
