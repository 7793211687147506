#include "machine/device/selection/selection.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "machine/device/host/launch.h"
#include "machine/device/selection/selection_bodies.h"

namespace machine {
namespace {

using kernel::magnitude_bits;

// Returns a magnitude that somewhat more than k elements are expected to reach, from a sample (Lin
// et al. 2018, arXiv:1712.01887). The sample can be wrong, so it only reduces the work and never
// changes the selection.
std::int32_t sampled_bound(const float* values, std::int64_t count, std::int64_t k) {
  const std::int64_t size = std::max<std::int64_t>(count / 256, 4096);
  if (size * 4 > count) return 0;
  // An odd stride, so that values that repeat along rows are not all sampled in one column.
  const std::int64_t stride = (count / size - 1) | 1;
  std::vector<std::int32_t> sample(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i)
    sample[static_cast<std::size_t>(i)] = magnitude_bits(values[i * stride]);
  const double expected =
      static_cast<double>(size) * static_cast<double>(k) / static_cast<double>(count);
  const double place = expected + 4 * std::sqrt(expected) + 4;  // four standard deviations beyond
  if (place >= static_cast<double>(size)) return 0;
  const auto at = sample.begin() + static_cast<std::ptrdiff_t>(place);
  std::nth_element(sample.begin(), at, sample.end(), std::greater<>());
  return *at;
}

std::vector<std::int32_t> magnitudes_from(const float* values, std::int64_t count,
                                          std::int32_t least) {
  std::vector<std::int32_t> magnitudes;
  HostLanes{}.list(
      count, [=](std::int64_t i) { return magnitude_bits(values[i]) >= least; },
      [&](std::int64_t, std::int64_t i) { magnitudes.push_back(magnitude_bits(values[i])); });
  return magnitudes;
}

class HostSelection final : public kernel::SelectionKernels<HostLaunch> {
 public:
  HostSelection(Device& device, std::int64_t count, Choice choice, Category category)
      : SelectionKernels(device, count, choice, category, HostLaunch(device)) {}

 private:
  void find_bound(const Tensor& values, std::int64_t k) override {
    const auto* from = values.as<float>();
    auto magnitudes = magnitudes_from(from, count(), sampled_bound(from, count(), k));
    if (std::ssize(magnitudes) < k) magnitudes = magnitudes_from(from, count(), 0);
    const auto kth = magnitudes.begin() + (k - 1);
    std::nth_element(magnitudes.begin(), kth, magnitudes.end(), std::greater<>());
    state()->bound = *kth;
  }
};

}  // namespace

std::unique_ptr<Selection> make_selection(Device& device, std::int64_t count, Choice choice,
                                          Category category) {
  if (device.kind() != Device::Kind::host)
    return cuda::make_selection(device, count, choice, category);
  return std::make_unique<HostSelection>(device, count, choice, category);
}

}  // namespace machine
