#include "collectives/compression/quantized_all_gather.h"

namespace collectives {

using machine::Dtype;

QuantizedAllGather::QuantizedAllGather(const CompressionSetup& setup, std::unique_ptr<Code> code)
    : CompressedAllReduce(setup), code_(std::move(code)) {
  mine_ = host_tensor(Dtype::uint8, code_->bytes(count()));
  all_ = host_tensor(Dtype::uint8, code_->bytes(count()) * ranks());
}

void QuantizedAllGather::exchange(float* values, float* out) {
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

}  // namespace collectives
