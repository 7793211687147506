#include "collectives/compression/quantized_reduce_scatter.h"

#include <algorithm>
#include <cstring>

namespace collectives {

using machine::Dtype;
using machine::Tensor;

QuantizedReduceScatter::QuantizedReduceScatter(machine::World& world, Communicator& communicator,
                                               std::int64_t count,
                                               const CompressionOptions& options,
                                               std::unique_ptr<Code> code)
    : CompressedAllReduce(world, communicator, count, options),
      code_(std::move(code)),
      share_((count + ranks() - 1) / ranks()),
      bytes_(code_->bytes(share_)),
      outgoing_(host_tensor(Dtype::uint8, bytes_ * ranks())),
      gathered_(host_tensor(Dtype::uint8, bytes_ * ranks())),
      coded_sum_(host_tensor(Dtype::uint8, bytes_)),
      sum_(host_tensor(Dtype::float32, share_)),
      sum_residual_(host_tensor(Dtype::float32, share_)) {
  // A short share leaves the end of its code as it is.
  for (const Tensor* tensor : {&outgoing_, &coded_sum_})
    if (tensor->bytes() > 0) std::memset(tensor->data(), 0, tensor->bytes());
  forget();
}

void QuantizedReduceScatter::forget() { std::fill_n(sum_residual_.as<float>(), share_, 0.0f); }

ChunkRange QuantizedReduceScatter::share(int of) const {
  return {std::min(count(), of * share_), std::min(count(), (of + 1) * share_)};
}

void QuantizedReduceScatter::exchange(float* values, float* out) {
  const auto code_of = [&](const Tensor& codes, int peer) {
    return static_cast<std::byte*>(codes.data()) + peer * bytes_;
  };
  for (int peer = 0; peer < ranks(); ++peer)
    code_->encode(values + share(peer).begin, share(peer).size(), code_of(outgoing_, peer));
  lap(&Seconds::compress);
  communicator().all_to_all(outgoing_, gathered_);
  lap(&Seconds::exchange);

  const std::int64_t mine = share(rank()).size();
  float *sum = sum_.as<float>(), *rest = sum_residual_.as<float>();
  std::vector<const std::byte*> codes;
  for (int peer = 0; peer < ranks(); ++peer) codes.push_back(code_of(gathered_, peer));
  code_->decode_sum(codes, mine, sum);
  if (options().feedback) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < mine; ++i) rest[i] += sum[i];
  } else {
    std::copy_n(sum, mine, rest);
  }
  code_->encode(rest, mine, code_of(coded_sum_, 0));
  lap(&Seconds::compress);
  communicator().all_gather(coded_sum_, gathered_);
  lap(&Seconds::exchange);

  for (int peer = 0; peer < ranks(); ++peer) {
    const std::byte* code = code_of(gathered_, peer);
    code_->decode_sum({&code, 1}, share(peer).size(), out + share(peer).begin);
  }
  lap(&Seconds::decompress);
}

std::vector<double> QuantizedReduceScatter::held_back() const {
  std::vector<double> held = CompressedAllReduce::held_back();
  const ChunkRange mine = share(rank());
  const float* rest = sum_residual_.as<float>();
  for (std::int64_t i = mine.begin; i < mine.end; ++i)
    held[static_cast<std::size_t>(i)] += static_cast<double>(rest[i - mine.begin]);
  return held;
}

}  // namespace collectives
