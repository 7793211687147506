// Every rank gathers the codes of all ranks and sums them: one step, one quantization of each value
// (as gradients are exchanged in Dettmers 2015, arXiv:1511.04561). A rank receives N - 1 codes of
// all n values. So the volume grows with N, and beyond 4 ranks (8 bits) or 8 ranks a ring of floats
// sends less.
//
// |sum - exact| <= the sum over ranks of the code's error, and gamma_N of float on the decoded
// values.

#include "collectives/compression/algorithms.h"

namespace collectives {
namespace {

using machine::Dtype;

class QuantizedAllGather final : public CompressedAllReduce {
 public:
  QuantizedAllGather(const CompressionSetup& setup, std::unique_ptr<Code> code)
      : CompressedAllReduce(setup),
        code_(std::move(code)),
        mine_(host_tensor(Dtype::uint8, code_->bytes(count()))),
        all_(host_tensor(Dtype::uint8, code_->bytes(count()) * ranks())) {}

 private:
  void exchange(float* values, float* out) override {
    code_->encode(values, count(), static_cast<std::byte*>(mine_.data()));
    lap(&Seconds::compress);
    communicator().all_gather(mine_, all_);
    lap(&Seconds::exchange);
    std::vector<const std::byte*> codes;
    for (int peer = 0; peer < ranks(); ++peer)
      codes.push_back(static_cast<const std::byte*>(all_.data()) + peer * mine_.size());
    code_->decode_sum(codes, count(), out);
    lap(&Seconds::decompress);
  }

  std::unique_ptr<Code> code_;
  machine::Tensor mine_, all_;
};

}  // namespace

MadeCompression make_quantized_all_gather(const CompressionSetup& setup,
                                          std::unique_ptr<Code> code) {
  return std::make_unique<QuantizedAllGather>(setup, std::move(code));
}

}  // namespace collectives
