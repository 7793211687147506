// Threshold by standard deviation: a rank sends the elements whose magnitude reaches a multiple of
// the standard deviation of its values about zero, and all ranks gather them as pairs of index and
// value. Gradients are nearly normal, so their deviation replaces the selection of top-k (Shi et
// al. 2019, "Understanding Top-k Sparsification in Distributed Deep Learning", arXiv:1911.08772).
// The sent value is exact: kept plus sent is in + residual, bit for bit.
//
// The number of sent elements depends on the values. Ranks first gather their counts, then from
// each rank as many pairs as the largest count: a rank receives (N - 1) (4 + 8 most) bytes.
//
// The deviation is the root of the mean of squares, in double, in the order of the elements. If any
// rank has a value that is not finite, or a threshold beyond float, all elements of the sum are NaN
// on all ranks, and the residual of those values is zero. If the threshold rounds to zero, nothing
// is sent.

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "collectives/compression/algorithms.h"
#include "collectives/compression/magnitude.h"
#include "machine/base/reject.h"

namespace collectives {
namespace {

using machine::Dtype;
using machine::Tensor;

// The count of a rank with a value that is not finite.
constexpr std::int32_t not_finite = -1;

class Deviation final : public CompressedAllReduce {
 public:
  explicit Deviation(const CompressionSetup& setup)
      : CompressedAllReduce(setup),
        my_count_(buffer(Dtype::int32, 1)),
        counts_(buffer(Dtype::int32, ranks())),
        mine_(buffer(Dtype::uint32, 0)),
        all_(mine_) {
    if (count() > std::numeric_limits<std::int32_t>::max())
      machine::reject("deviation: a count has 31 bits, too few for {} elements", count());
  }

  Selected selected() const override { return selected_; }

 private:
  void exchange(const Tensor& held, const Tensor& sum) override {
    auto *const values = held.as<float>(), *const out = sum.as<float>();
    const float least = threshold(values);
    std::vector<std::int64_t> mine;
    if (std::isfinite(least) && least > 0)
      for_each_at_least(values, count(), magnitude(least),
                        [&](std::int64_t i) { mine.push_back(i); });
    if (!std::isfinite(least))
      for (std::int64_t i = 0; i < count(); ++i)
        if (!std::isfinite(values[i])) values[i] = 0;
    lap(&Seconds::compress);

    *my_count_.as<std::int32_t>() =
        std::isfinite(least) ? static_cast<std::int32_t>(std::ssize(mine)) : not_finite;
    communicator().all_gather(my_count_, counts_);
    const std::int32_t* counts = counts_.as<std::int32_t>();
    if (std::find(counts, counts + ranks(), not_finite) != counts + ranks()) {
      std::fill_n(out, count(), std::numeric_limits<float>::quiet_NaN());
      return lap(&Seconds::exchange);
    }
    const std::int64_t most = *std::max_element(counts, counts + ranks());
    selected_ = {most, std::max(most, selected_.largest)};
    if (2 * most > mine_.size()) {
      mine_ = all_ = machine::Tensor();  // frees the shorter ones first
      mine_ = buffer(Dtype::uint32, 2 * most);
      all_ = buffer(Dtype::uint32, 2 * most * ranks());
    }
    if (most > 0) {
      auto* words = mine_.as<std::uint32_t>();
      std::fill_n(words, 2 * most, 0u);
      for (std::size_t i = 0; i < mine.size(); ++i) {
        words[i] = static_cast<std::uint32_t>(mine[i]);
        words[static_cast<std::size_t>(most) + i] = std::bit_cast<std::uint32_t>(values[mine[i]]);
        values[mine[i]] = 0;
      }
      communicator().all_gather(mine_.slice(0, {2 * most}), all_.slice(0, {2 * most * ranks()}));
    }
    lap(&Seconds::exchange);

    std::fill_n(out, count(), 0.0f);
    for (int peer = 0; peer < ranks(); ++peer) {
      const std::uint32_t* theirs = all_.as<std::uint32_t>() + 2 * most * peer;
      for (std::int32_t i = 0; i < counts[peer]; ++i)
        out[theirs[i]] += std::bit_cast<float>(theirs[most + i]);
    }
    lap(&Seconds::decompress);
  }

  float threshold(const float* values) const {
    double squares = 0;
    for (std::int64_t i = 0; i < count(); ++i) {
      const auto value = static_cast<double>(values[i]);
      squares += value * value;
    }
    return static_cast<float>(options().deviations *
                              std::sqrt(squares / static_cast<double>(count())));
  }

  Tensor my_count_, counts_;
  Tensor mine_, all_;  // of each rank the indices, then the values
  Selected selected_;
};

}  // namespace

MadeCompression make_deviation(const CompressionSetup& setup) {
  return std::make_unique<Deviation>(setup);
}

}  // namespace collectives
