#include "harness/measure/statistics.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "machine/base/error.h"

namespace harness {

double quantile(std::span<const double> sorted, double p) {
  SHARDMARK_CHECK(sorted.size(), >, 0u);
  const double place = static_cast<double>(sorted.size() - 1) * p;
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

Quantiles quantiles(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return {sorted.front(),        quantile(sorted, 0.05), quantile(sorted, 0.25),
          quantile(sorted, 0.5), quantile(sorted, 0.75), quantile(sorted, 0.95),
          sorted.back()};
}

double median(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return quantile(sorted, 0.5);
}

std::optional<std::pair<int, int>> median_ranks(int n, double confidence) {
  const double tail = (1 - confidence) / 2;
  double below = 0;  // P(X <= r - 1)
  int rank = 0;
  for (int r = 1; r <= (n + 1) / 2; ++r) {
    const double k = r - 1;
    below += std::exp(std::lgamma(n + 1.0) - std::lgamma(k + 1) - std::lgamma(n - k + 1) -
                      n * std::log(2.0));
    if (below > tail) break;
    rank = r;
  }
  if (rank == 0) return std::nullopt;
  return std::pair{rank, n + 1 - rank};
}

double lag1_autocorrelation(std::span<const double> values) {
  if (values.size() < 3) return 0;
  double mean = 0, squares = 0, products = 0;
  // From the first value on, so that equal values deviate by exactly zero.
  for (double value : values) mean += (value - values[0]) / static_cast<double>(values.size());
  mean += values[0];
  for (std::size_t i = 0; i < values.size(); ++i) {
    squares += (values[i] - mean) * (values[i] - mean);
    if (i > 0) products += (values[i] - mean) * (values[i - 1] - mean);
  }
  return squares > 0 ? products / squares : 0;
}

double effective_samples(int n, double lag1) {
  const double r = std::clamp(lag1, 0.0, 1.0);
  return n * (1 - r) / (1 + r);
}

std::optional<Interval> median_interval(std::span<const double> values) {
  const int n = static_cast<int>(values.size());
  const int independent = static_cast<int>(effective_samples(n, lag1_autocorrelation(values)));
  const auto ranks = median_ranks(independent);
  if (!ranks) return std::nullopt;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  // The same fraction of the values is left out on either side.
  const auto low = std::max<std::int64_t>(1, std::int64_t{ranks->first} * n / independent);
  return Interval{sorted[static_cast<std::size_t>(low - 1)],
                  sorted[static_cast<std::size_t>(n - low)]};
}

std::vector<double> robust_z(std::span<const double> values, std::span<const double> usual,
                             double least_spread) {
  if (usual.empty()) return {};
  const double centre = median(usual);
  std::vector<double> deviations;
  for (const double value : usual) deviations.push_back(std::abs(value - centre));
  const double spread = std::max(1.4826 * median(deviations), least_spread * centre);
  std::vector<double> z;
  for (const double value : values) z.push_back(spread > 0 ? (value - centre) / spread : 0);
  return z;
}

}  // namespace harness
