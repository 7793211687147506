// Every rank gathers the codes of all ranks and sums them: one step, one quantization of each value
// (as gradients are exchanged in Dettmers 2015, arXiv:1511.04561). A rank receives N - 1 codes of
// all n values. So the volume grows with N, and beyond 4 ranks (8 bits) or 8 ranks a ring of floats
// sends less.
//
// |sum - exact| <= the sum over ranks of the code's error, and gamma_N of float on the decoded
// values.

#include "collectives/compression/algorithms.h"

namespace collectives {

using machine::Dtype;
using machine::FloatCode;
using machine::Tensor;

namespace {

class QuantizedAllGather final : public CompressedAllReduce {
 public:
  QuantizedAllGather(const CompressionSetup& setup, FloatCode code)
      : CompressedAllReduce(setup),
        code_(code),
        mine_(buffer(Dtype::uint8, coded_bytes(code, count()))),
        all_(buffer(Dtype::uint8, coded_bytes(code, count()) * ranks())) {}

 private:
  void exchange(const Tensor& values, const Tensor& out) override {
    encode_floats(stream(), code_, values, mine_, {});
    lap(&Seconds::compress);
    communicator().all_gather(mine_, all_);
    lap(&Seconds::exchange);
    decode_floats(stream(), code_, all_, ranks(), mine_.size(), out);
    lap(&Seconds::decompress);
  }

  FloatCode code_;
  Tensor mine_, all_;
};

}  // namespace

MadeCompression make_quantized_all_gather(const CompressionSetup& setup, FloatCode code) {
  return std::make_unique<QuantizedAllGather>(setup, code);
}

}  // namespace collectives
