// Top-k: a rank sends its k elements of largest magnitude, and all ranks gather them as pairs of
// index and value (Lin et al. 2018, "Deep Gradient Compression", arXiv:1712.01887: its
// sparsification, without momentum correction and clipping).
//
// As in that paper, a sample of the values first finds a threshold, so that only few elements must
// be ordered. Unlike in the paper, the selection is exact. It prefers lower indices among equal
// magnitudes. The sent value is exact: kept plus sent is in + residual, bit for bit.
//
// NaN has the largest magnitude, before infinity. Both are sent first and reach every rank at their
// place. Beyond k of them, the rest stays in the residual for the next run.
//
// Every rank receives k (N - 1) pairs of 8 bytes: more than the 8 n (N - 1) / N of a ring when
// k > n / N.

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "collectives/compression/algorithms.h"
#include "collectives/compression/magnitude.h"
#include "machine/base/reject.h"

namespace collectives {
namespace {

using machine::Dtype;
using machine::Tensor;

// Orders elements by magnitude, and equal magnitudes by index, lower first. Keys are unique.
std::uint64_t key(std::uint32_t magnitude, std::int64_t index) {
  return std::uint64_t{magnitude} << 32 | ~static_cast<std::uint32_t>(index);
}
std::uint32_t index_of(std::uint64_t key) { return ~static_cast<std::uint32_t>(key); }

// Returns a magnitude that somewhat more than k elements are expected to reach, from a sample. The
// sample can be wrong, so it only reduces the work and never changes the selection.
std::uint32_t sampled_threshold(const float* values, std::int64_t count, std::int64_t k) {
  const std::int64_t size = std::max<std::int64_t>(count / 256, 4096);
  if (size * 4 > count) return 0;
  // An odd stride, so that values that repeat along rows are not all sampled in one column.
  const std::int64_t stride = (count / size - 1) | 1;
  std::vector<std::uint32_t> sample(size);
  for (std::int64_t i = 0; i < size; ++i) sample[i] = magnitude(values[i * stride]);
  const double expected = static_cast<double>(size) * static_cast<double>(k) / count;
  const double place = expected + 4 * std::sqrt(expected) + 4;  // four standard deviations beyond
  if (place >= static_cast<double>(size)) return 0;
  const auto at = sample.begin() + static_cast<std::ptrdiff_t>(place);
  std::nth_element(sample.begin(), at, sample.end(), std::greater<>());
  return *at;
}

std::vector<std::uint64_t> candidates(const float* values, std::int64_t count,
                                      std::uint32_t least) {
  std::vector<std::uint64_t> keys;
  for_each_at_least(values, count, least,
                    [&](std::int64_t i) { keys.push_back(key(magnitude(values[i]), i)); });
  return keys;
}

class TopK final : public CompressedAllReduce {
 public:
  explicit TopK(const CompressionSetup& setup)
      : CompressedAllReduce(setup), k_(std::min(setup.options.k, setup.count)) {
    if (count() > std::numeric_limits<std::uint32_t>::max())
      machine::reject("top_k: an index has 32 bits, too few for {} elements", count());
    mine_ = buffer(Dtype::uint32, 2 * k_);
    all_ = buffer(Dtype::uint32, 2 * k_ * ranks());
  }

 private:
  void exchange(const Tensor& held, const Tensor& sum) override {
    auto *const values = held.as<float>(), *const out = sum.as<float>();
    auto* indices = mine_.as<std::uint32_t>();
    select_top_k(values, count(), k_, indices);
    for (std::int64_t i = 0; i < k_; ++i) {
      indices[k_ + i] = std::bit_cast<std::uint32_t>(values[indices[i]]);
      values[indices[i]] = 0;
    }
    lap(&Seconds::compress);
    communicator().all_gather(mine_, all_);
    lap(&Seconds::exchange);
    std::fill_n(out, count(), 0.0f);
    for (int peer = 0; peer < ranks(); ++peer) {
      const std::uint32_t* theirs = all_.as<std::uint32_t>() + 2 * k_ * peer;
      for (std::int64_t i = 0; i < k_; ++i) out[theirs[i]] += std::bit_cast<float>(theirs[k_ + i]);
    }
    lap(&Seconds::decompress);
  }

  std::int64_t k_;
  Tensor mine_, all_;  // of each rank k indices, then k values
};

}  // namespace

void select_top_k(const float* values, std::int64_t count, std::int64_t k, std::uint32_t* indices) {
  auto keys = candidates(values, count, sampled_threshold(values, count, k));
  if (std::ssize(keys) < k) keys = candidates(values, count, 0);
  std::vector<std::uint64_t> ordered = keys;
  const auto kth = ordered.begin() + (k - 1);
  std::nth_element(ordered.begin(), kth, ordered.end(), std::greater<>());
  for (const std::uint64_t each : keys)
    if (each >= *kth) *indices++ = index_of(each);
}

MadeCompression make_top_k(const CompressionSetup& setup) { return std::make_unique<TopK>(setup); }

}  // namespace collectives
