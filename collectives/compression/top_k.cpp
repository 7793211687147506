#include "collectives/compression/top_k.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>

#include "collectives/compression/magnitude.h"

namespace collectives {

using machine::Dtype;

namespace {

// Orders elements by magnitude, and equal ones by index, lower ones first: no two keys are equal.
std::uint64_t key(std::uint32_t magnitude, std::int64_t index) {
  return std::uint64_t{magnitude} << 32 | ~static_cast<std::uint32_t>(index);
}
std::uint32_t index_of(std::uint64_t key) { return ~static_cast<std::uint32_t>(key); }

// A magnitude that somewhat more than k elements are expected to reach, from a sample of them; a
// sample can be wrong, so it only decides how much is left to do, never what is selected.
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

TopK::TopK(const CompressionSetup& setup)
    : CompressedAllReduce(setup), k_(std::min(setup.options.k, setup.count)) {
  if (count() > std::numeric_limits<std::uint32_t>::max())
    throw std::invalid_argument(
        fmt::format("top_k: an index has 32 bits, too few for {} elements", count()));
  mine_ = host_tensor(Dtype::uint32, 2 * k_);
  all_ = host_tensor(Dtype::uint32, 2 * k_ * ranks());
}

void TopK::exchange(float* values, float* out) {
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

}  // namespace collectives
