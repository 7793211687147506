// A reduce-scatter of codes by all-to-all, then an all-gather of the sums, coded again (qgZ of
// ZeRO++: Wang et al. 2023, arXiv:2306.10209, section 4.3). One hop, between all N ranks, quantizes
// each value twice; a ring of codes would do so N - 1 times. A rank sends N - 1 codes of
// ceil(n / N) elements, and the same number to gather. Two hops, as there, are first between the g
// near ranks (communicator.h, inner()), then between the N / g ranks that hold the sums of the same
// shares: three quantizations, g - 1 times N / g codes inside and only N / g - 1 between hosts.
//
// The rank that reduces a share, or a part of it, keeps the values that the next code does not
// carry, and adds them to the next sum (1-bit Adam, Tang et al. 2021, arXiv:2102.02888: errors of
// worker and server).
//
// |sum - exact| <= the code's errors of the ranks' values, of the sums after the first of two hops,
// and of the whole sum, and gamma_N of float on the decoded values.

#include <algorithm>
#include <numeric>

#include "collectives/compression/algorithms.h"

namespace collectives {

using machine::Dtype;
using machine::FloatCode;
using machine::Tensor;

namespace {

class QuantizedReduceScatter final : public CompressedAllReduce {
 public:
  QuantizedReduceScatter(const CompressionSetup& setup, FloatCode code, bool two_hops)
      : CompressedAllReduce(setup),
        code_(code),
        share_((count() + ranks() - 1) / ranks()),
        bytes_(coded_bytes(code, share_)),
        outgoing_(buffer(Dtype::uint8, bytes_ * ranks())),
        gathered_(buffer(Dtype::uint8, bytes_ * ranks())),
        coded_sum_(buffer(Dtype::uint8, bytes_)),
        sum_(buffer(Dtype::float32, share_)) {
    if (code == FloatCode::one_bit) squares_ = buffer(Dtype::float64, 1);
    // A short share does not write the end of its code.
    for (const Tensor* tensor : {&outgoing_, &coded_sum_}) stream().kernels().fill(*tensor, 0);
    const int inner = communicator().inner();
    if (two_hops && inner > 1 && inner < ranks()) {
      add_hop(inner, 1);
      add_hop(ranks() / inner, inner);
    } else {
      add_hop(ranks(), 1);
    }
    forget();
  }

  std::vector<double> held_back() const override {
    std::vector<double> held = CompressedAllReduce::held_back();
    for (const Hop& hop : hops_) {
      const std::vector<double> rests = to_doubles(hop.residual);
      for (std::size_t i = 0; i < hop.ids.size(); ++i) {
        const ChunkRange part = share(hop.ids[i]);
        const double* rest = rests.data() + static_cast<std::int64_t>(i) * share_;
        for (std::int64_t j = part.begin; j < part.end; ++j) held[j] += rest[j - part.begin];
      }
    }
    return held;
  }

 private:
  // An exchange of codes between some ranks. After it this rank holds the sums of the shares `ids`,
  // one after the other, each in share_ floats.
  struct Hop {
    int ranks = 1;
    std::shared_ptr<const TrafficMatrix> traffic;  // null: all ranks
    std::vector<int> ids;
    Tensor residual;
  };

  void exchange(const Tensor& values, const Tensor& out) override {
    // The places of this rank's shares before a hop.
    std::vector<ChunkRange> had;
    for (int id = 0; id < ranks(); ++id) had.push_back(share(id));
    Tensor data = values;
    for (const Hop& hop : hops_) {
      const auto kept = static_cast<std::int64_t>(hop.ids.size());
      for (std::int64_t to = 0; to < hop.ranks; ++to)
        for (std::int64_t i = 0; i < kept; ++i) {
          const ChunkRange& from = had[i * hop.ranks + to];
          encode(data, from, outgoing_, to * kept + i);
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
      data = hop.residual;
      for (std::int64_t i = 0; i < kept; ++i) {
        const std::int64_t size = share(hop.ids[i]).size();
        const Tensor rest = data.slice(i * share_, {size});
        const Tensor sum = options().feedback ? sum_.slice(0, {size}) : rest;
        decode_floats(stream(), code_, gathered_.slice(i * bytes_, {moved - i * bytes_}), hop.ranks,
                      kept * bytes_, sum);
        if (options().feedback) stream().kernels().add(rest, sum, rest);
        had.push_back({i * share_, i * share_ + size});
      }
    }
    encode(data, had.front(), coded_sum_, 0);
    lap(&Seconds::compress);
    communicator().all_gather(coded_sum_, gathered_);
    lap(&Seconds::exchange);

    for (int peer = 0; peer < ranks(); ++peer) {
      const ChunkRange part = share(peer);
      decode_floats(stream(), code_, gathered_.slice(peer * bytes_, {bytes_}), 1, bytes_,
                    out.slice(part.begin, {part.size()}));
    }
    lap(&Seconds::decompress);
  }

  void forget() override {
    for (const Hop& hop : hops_) stream().kernels().fill(hop.residual, 0);
  }

  void encode(const Tensor& data, const ChunkRange& part, const Tensor& codes, std::int64_t place) {
    encode_floats(stream(), code_, data.slice(part.begin, {part.size()}),
                  codes.slice(place * bytes_, {coded_bytes(code_, part.size())}), squares_);
  }

  // Adds a hop between the `among` ranks whose distance is a multiple of stride. This rank keeps
  // every among-th of its shares.
  void add_hop(int among, int stride) {
    std::vector<int> had(static_cast<std::size_t>(ranks()));
    std::iota(had.begin(), had.end(), 0);
    if (!hops_.empty()) had = hops_.back().ids;
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
    hop.residual = buffer(Dtype::float32, kept * share_);
    hops_.push_back(std::move(hop));
  }

  // All shares have share_ elements, except the last ones.
  ChunkRange share(int of) const {
    return {std::min(count(), of * share_), std::min(count(), (of + 1) * share_)};
  }

  FloatCode code_;
  std::int64_t share_, bytes_;  // the longest share; its code
  Tensor outgoing_, gathered_;  // a code for each rank, of each rank
  Tensor coded_sum_;
  Tensor sum_;      // float, of one share
  Tensor squares_;  // of one bit
  std::vector<Hop> hops_;
};

}  // namespace

MadeCompression make_quantized_reduce_scatter(const CompressionSetup& setup, FloatCode code,
                                              bool two_hops) {
  return std::make_unique<QuantizedReduceScatter>(setup, code, two_hops);
}

}  // namespace collectives
