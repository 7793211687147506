#include "collectives/compression/quantized_reduce_scatter.h"

#include <algorithm>
#include <cstring>

namespace collectives {

using machine::Dtype;
using machine::Tensor;

QuantizedReduceScatter::QuantizedReduceScatter(const CompressionSetup& setup,
                                               std::unique_ptr<Code> code, bool two_hops)
    : CompressedAllReduce(setup),
      code_(std::move(code)),
      share_((count() + ranks() - 1) / ranks()),
      bytes_(code_->bytes(share_)),
      outgoing_(host_tensor(Dtype::uint8, bytes_ * ranks())),
      gathered_(host_tensor(Dtype::uint8, bytes_ * ranks())),
      coded_sum_(host_tensor(Dtype::uint8, bytes_)),
      sum_(host_tensor(Dtype::float32, share_)) {
  // A short share leaves the end of its code as it is.
  for (const Tensor* tensor : {&outgoing_, &coded_sum_})
    if (tensor->bytes() > 0) std::memset(tensor->data(), 0, tensor->bytes());
  const int inner = communicator().inner();
  if (two_hops && inner > 1 && inner < ranks()) {
    add_hop(inner, 1);
    add_hop(ranks() / inner, inner);
  } else {
    add_hop(ranks(), 1);
  }
  forget();
}

// Between this rank and those that are a multiple of stride away from it, as many as `among`. Of
// the shares it has so far, one after the other, it keeps every among-th.
void QuantizedReduceScatter::add_hop(int among, int stride) {
  std::vector<int> had;
  if (hops_.empty())
    for (int id = 0; id < ranks(); ++id) had.push_back(id);
  else
    had = hops_.back().ids;
  Hop hop{among, nullptr, {}, {}};
  const int place = rank() / stride % among;
  for (std::size_t i = static_cast<std::size_t>(place); i < had.size();
       i += static_cast<std::size_t>(among))
    hop.ids.push_back(had[i]);
  const auto kept = static_cast<std::int64_t>(hop.ids.size());
  if (among < ranks()) {
    const auto near = [&](int a, int b) {
      return a / (stride * among) == b / (stride * among) && a % stride == b % stride;
    };
    std::vector<std::int64_t> elements;
    for (int from = 0; from < ranks(); ++from)
      for (int to = 0; to < ranks(); ++to) elements.push_back(near(from, to) ? kept * bytes_ : 0);
    hop.traffic = std::make_shared<const TrafficMatrix>(ranks(), elements);
  }
  hop.residual = host_tensor(Dtype::float32, kept * share_);
  hops_.push_back(std::move(hop));
}

void QuantizedReduceScatter::forget() {
  for (const Hop& hop : hops_) std::fill_n(hop.residual.as<float>(), hop.residual.size(), 0.0f);
}

ChunkRange QuantizedReduceScatter::share(int of) const {
  return {std::min(count(), of * share_), std::min(count(), (of + 1) * share_)};
}

void QuantizedReduceScatter::exchange(float* values, float* out) {
  const auto code_of = [&](const Tensor& codes, std::int64_t i) {
    return static_cast<std::byte*>(codes.data()) + i * bytes_;
  };
  // Of the shares that there were before a hop, this rank had the i-th at had(i).
  std::vector<ChunkRange> had;
  for (int id = 0; id < ranks(); ++id) had.push_back(share(id));
  float* data = values;
  for (const Hop& hop : hops_) {
    const auto kept = static_cast<std::int64_t>(hop.ids.size());
    for (std::int64_t to = 0; to < hop.ranks; ++to)
      for (std::int64_t i = 0; i < kept; ++i) {
        const ChunkRange& from = had[i * hop.ranks + to];
        code_->encode(data + from.begin, from.size(), code_of(outgoing_, to * kept + i));
      }
    lap(&Seconds::compress);
    const std::int64_t moved = hop.ranks * kept * bytes_;
    if (hop.traffic)
      communicator().all_to_all_v(outgoing_.slice(0, {moved}), gathered_.slice(0, {moved}),
                                  hop.traffic);
    else
      communicator().all_to_all(outgoing_, gathered_);
    lap(&Seconds::exchange);

    had.clear();
    data = hop.residual.as<float>();
    float* sum = sum_.as<float>();
    for (std::int64_t i = 0; i < kept; ++i) {
      const std::int64_t size = share(hop.ids[i]).size();
      std::vector<const std::byte*> codes;
      for (std::int64_t peer = 0; peer < hop.ranks; ++peer)
        codes.push_back(code_of(gathered_, peer * kept + i));
      code_->decode_sum(codes, size, sum);
      float* rest = data + i * share_;
      if (options().feedback) {
#pragma GCC ivdep
        for (std::int64_t j = 0; j < size; ++j) rest[j] += sum[j];
      } else {
        std::copy_n(sum, size, rest);
      }
      had.push_back({i * share_, i * share_ + size});
    }
  }
  code_->encode(data, had.front().size(), code_of(coded_sum_, 0));
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
  for (const Hop& hop : hops_)
    for (std::size_t i = 0; i < hop.ids.size(); ++i) {
      const ChunkRange part = share(hop.ids[i]);
      const float* rest = hop.residual.as<float>() + static_cast<std::int64_t>(i) * share_;
      for (std::int64_t j = part.begin; j < part.end; ++j)
        held[j] += static_cast<double>(rest[j - part.begin]);
    }
  return held;
}

}  // namespace collectives
