#include "collectives/compression/threshold.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "collectives/compression/magnitude.h"

namespace collectives {

using machine::Dtype;

namespace {

// Ranks tell each other their counts; a rank with a value that is not a number tells this.
constexpr std::int64_t not_finite = -1;

}  // namespace

Threshold::Threshold(const CompressionSetup& setup) : CompressedAllReduce(setup) {
  if (count() > std::numeric_limits<std::int32_t>::max())
    throw std::invalid_argument(
        fmt::format("threshold: an index has 31 bits, too few for {} elements", count()));
  my_count_ = host_tensor(Dtype::int32, 1);
  counts_ = host_tensor(Dtype::int32, ranks());
  mine_ = all_ = host_tensor(Dtype::uint32, 0);
}

void Threshold::exchange(float* values, float* out) {
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
    mine_ = host_tensor(Dtype::uint32, most);
    all_ = host_tensor(Dtype::uint32, most * ranks());
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

}  // namespace collectives
