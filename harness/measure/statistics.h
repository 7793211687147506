#pragma once
// Medians with exact intervals. Times are neither normal nor independent, so nothing here assumes
// the one, and the interval is widened for the lack of the other.

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "harness/record/record.h"

namespace harness {

// Linear between the two nearest order statistics: x[h], h = (n - 1) p (type 7 of Hyndman & Fan
// 1996). Of values in ascending order; at least one.
double quantile(std::span<const double> sorted, double p);
Quantiles quantiles(std::span<const double> values);
double median(std::span<const double> values);

// The order statistics (1-based) between which the median lies with at least this confidence,
// whatever the distribution: X ~ Binomial(n, 1/2) values lie below it. 10 -> (2, 9), 100 -> (40,
// 61). None when even the extremes do not suffice: below 6 for 95 %.
std::optional<std::pair<int, int>> median_ranks(int n, double confidence = 0.95);

// Pearson's correlation of each value with the one before. 0 for fewer than 3 or for a constant.
double lag1_autocorrelation(std::span<const double> values);
// How many independent values say as much about the centre as n correlated ones: n (1 - r) / (1 +
// r). A negative r is taken as 0: chance must not narrow an interval.
double effective_samples(int n, double lag1);

struct Interval {
  double low = 0, high = 0;
};
// For the median of values in the order of measuring, 95 %, with effective_samples in place of
// their number. None when fewer than 6 effective ones are left.
std::optional<Interval> median_interval(std::span<const double> values);

// How far each value lies above the median, in standard deviations as the median of absolute
// deviations estimates them, which outliers do not move: (x - median) / (1.4826 MAD) (Iglewicz and
// Hoaglin 1993, "How to detect and handle outliers"). The divisor is least_spread * median at the
// least, so that nothing stands out among values that are nearly equal. Values are positive.
std::vector<double> robust_z(std::span<const double> values, double least_spread);
// The same of other values, by the median and deviations of `usual`.
std::vector<double> robust_z(std::span<const double> values, std::span<const double> usual,
                             double least_spread);
// From where on those authors call a value an outlier.
inline constexpr double outlying_z = 3.5;

}  // namespace harness
