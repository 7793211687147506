// Threshold: a rank sends plus or minus the threshold for each element whose magnitude has reached
// it, once per run, and keeps the rest (Strom 2015, "Scalable distributed DNN training using
// commodity GPU cloud computing", doi:10.21437/Interspeech.2015-354). As in that paper, a sent
// element is one word of 32 bits: its index, and its sign in the last bit.
//
// The number of sent elements depends on the values. Ranks first gather their counts. Then they
// gather as many words from each rank as the largest count. A rank receives 4 (N - 1) (1 + most)
// bytes.
//
// NaN and infinity have no such word. If any rank has one, all elements of the sum are NaN on all
// ranks, and those elements' residual is zero. Values that stay above the threshold run after run
// accumulate in the residual. So the threshold must be above the value that a run adds to an
// element.

#include <algorithm>
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
constexpr std::int64_t not_finite = -1;

class Threshold final : public CompressedAllReduce {
 public:
  explicit Threshold(const CompressionSetup& setup)
      : CompressedAllReduce(setup),
        my_count_(buffer(Dtype::int32, 1)),
        counts_(buffer(Dtype::int32, ranks())),
        mine_(buffer(Dtype::uint32, 0)),
        all_(mine_) {
    if (count() > std::numeric_limits<std::int32_t>::max())
      machine::reject("threshold: an index has 31 bits, too few for {} elements", count());
  }

 private:
  void exchange(const Tensor& held, const Tensor& sum) override {
    auto *const values = held.as<float>(), *const out = sum.as<float>();
    const float threshold = options().threshold;
    bool finite = true;
    selected_.clear();
    for_each_at_least(values, count(), magnitude(threshold), [&](std::int64_t i) {
      if (!std::isfinite(values[i])) {
        finite = false;
        values[i] = 0;
        return;
      }
      const bool negative = values[i] < 0;
      selected_.push_back(static_cast<std::uint32_t>(i) << 1 | (negative ? 1u : 0u));
      values[i] += negative ? threshold : -threshold;
    });
    lap(&Seconds::compress);

    *my_count_.as<std::int32_t>() =
        static_cast<std::int32_t>(finite ? std::ssize(selected_) : not_finite);
    communicator().all_gather(my_count_, counts_);
    const std::int32_t* counts = counts_.as<std::int32_t>();
    if (std::find(counts, counts + ranks(), not_finite) != counts + ranks()) {
      for (const std::uint32_t word : selected_)  // not sent after all
        values[word >> 1] += (word & 1) ? -threshold : threshold;
      std::fill_n(out, count(), std::numeric_limits<float>::quiet_NaN());
      return lap(&Seconds::exchange);
    }
    const std::int64_t most = *std::max_element(counts, counts + ranks());
    if (most > mine_.size()) {
      mine_ = buffer(Dtype::uint32, most);
      all_ = buffer(Dtype::uint32, most * ranks());
    }
    if (most > 0) {
      std::copy(selected_.begin(), selected_.end(), mine_.as<std::uint32_t>());
      std::fill(mine_.as<std::uint32_t>() + selected_.size(), mine_.as<std::uint32_t>() + most, 0u);
      communicator().all_gather(mine_.slice(0, {most}), all_.slice(0, {most * ranks()}));
    }
    lap(&Seconds::exchange);

    std::fill_n(out, count(), 0.0f);
    for (int peer = 0; peer < ranks(); ++peer) {
      const std::uint32_t* words = all_.as<std::uint32_t>() + most * peer;
      for (std::int32_t i = 0; i < counts[peer]; ++i)
        out[words[i] >> 1] += (words[i] & 1) ? -threshold : threshold;
    }
    lap(&Seconds::decompress);
  }

  Tensor my_count_, counts_;
  Tensor mine_, all_;  // words, as large as any run has needed
  std::vector<std::uint32_t> selected_;
};

}  // namespace

MadeCompression make_threshold(const CompressionSetup& setup) {
  return std::make_unique<Threshold>(setup);
}

}  // namespace collectives
