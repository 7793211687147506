// Top-k: a rank sends its k elements of largest magnitude, and all ranks gather them as pairs of
// index and value (Lin et al. 2018, "Deep Gradient Compression", arXiv:1712.01887: its
// sparsification, without momentum correction and clipping).
//
// Unlike in that paper, the selection is exact. It prefers lower indices among equal magnitudes.
// The sent value is exact: kept plus sent is in + residual, bit for bit.
//
// NaN has the largest magnitude, before infinity. Both are sent first and reach every rank at their
// place. Beyond k of them, the rest stays in the residual for the next run.
//
// Every rank receives k (N - 1) pairs of 8 bytes: more than the 8 n (N - 1) / N of a ring when
// k > n / N.

#include <algorithm>

#include "collectives/compression/algorithms.h"
#include "machine/device/selection/selection.h"

namespace collectives {
namespace {

using machine::Dtype;
using machine::Tensor;

class TopK final : public CompressedAllReduce {
 public:
  explicit TopK(const CompressionSetup& setup)
      : CompressedAllReduce(setup), k_(std::min(setup.options.k, setup.count)) {
    reject_long_index(setup.count);
    selection_ = machine::make_selection(setup.device, setup.count, machine::Choice::largest,
                                         machine::Category::compression);
    mine_ = buffer(Dtype::uint32, 2 * k_);
    all_ = buffer(Dtype::uint32, 2 * k_ * ranks());
  }

 private:
  void exchange(const Tensor& held, const Tensor& sum) override {
    selection_->choose_largest(held, k_);
    selection_->take(held, indices(mine_), values(mine_));
    lap(&Seconds::compress);
    communicator().all_gather(mine_, all_);
    lap(&Seconds::exchange);
    stream().kernels().fill(sum, 0);
    for (int peer = 0; peer < ranks(); ++peer) {
      const Tensor theirs = all_.slice(2 * k_ * peer, {2 * k_});
      selection_->add(indices(theirs), values(theirs), sum);
    }
    lap(&Seconds::decompress);
  }

  Tensor indices(const Tensor& list) const { return list.slice(0, {k_}); }
  Tensor values(const Tensor& list) const { return list.slice(k_, {k_}); }

  std::int64_t k_;
  std::unique_ptr<machine::Selection> selection_;
  Tensor mine_, all_;  // of each rank k indices, then k values
};

}  // namespace

MadeCompression make_top_k(const CompressionSetup& setup) { return std::make_unique<TopK>(setup); }

}  // namespace collectives
