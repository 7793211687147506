#pragma once
// Medians with exact intervals. Times are not normal and not independent. No method here assumes
// normality, and the interval is widened for dependence.

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "harness/record/record.h"

namespace harness {

// Interpolates between the two nearest order statistics: x[h], h = (n - 1) p (type 7 of Hyndman &
// Fan 1996). Requires ascending values, at least one.
double quantile(std::span<const double> sorted, double p);
Quantiles quantiles(std::span<const double> values);
double median(std::span<const double> values);

// Returns the order statistics (1-based) that enclose the median with at least this confidence, for
// any distribution: X ~ Binomial(n, 1/2) values are below it. 10 -> (2, 9), 100 -> (40, 61). Empty
// if even the extremes do not suffice: below 6 values for 95 %.
std::optional<std::pair<int, int>> median_ranks(int n, double confidence = 0.95);

// Pearson's correlation of each value with the previous one. 0 for fewer than 3 values or a
// constant.
double lag1_autocorrelation(std::span<const double> values);
// Returns the number of independent values with as much information about the centre as n
// correlated values: n (1 - r) / (1 + r). A negative r counts as 0: chance must not narrow an
// interval.
double effective_samples(int n, double lag1);

struct Interval {
  double low = 0, high = 0;
};
// Returns the 95 % interval of the median, from values in the order of measurement, with
// effective_samples as their number. Empty if fewer than 6 effective values are left.
std::optional<Interval> median_interval(std::span<const double> values);

// Distance of each value from the median of `usual`, in standard deviations estimated by the median
// of absolute deviations, which is robust to outliers: (x - median) / (1.4826 MAD) (Iglewicz and
// Hoaglin 1993, "How to detect and handle outliers"). The divisor is at least least_spread *
// median, so that nearly equal values have no outlier. Values are positive.
std::vector<double> robust_z(std::span<const double> values, std::span<const double> usual,
                             double least_spread);
// The authors' threshold for outliers.
inline constexpr double outlying_z = 3.5;

}  // namespace harness
