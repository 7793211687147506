#include "harness/judge/numerics.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace harness {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

bool all_finite(double a, double b, double c = 0) {
  return std::isfinite(a) && std::isfinite(b) && std::isfinite(c);
}

// Different sizes are a wrong result, not a crash.
bool same_size(std::size_t actual, std::size_t expected, Comparison& result) {
  if (actual == expected) return true;
  result.right = false;
  result.error = infinity;
  result.text = fmt::format("{} elements, expected {}", actual, expected);
  return false;
}

// Scaled by the largest element, so that squares do not vanish or overflow.
double norm_of(std::span<const double> values) {
  double largest = 0, squares = 0;
  for (double value : values) largest = std::max(largest, std::abs(value));
  if (largest == 0 || !std::isfinite(largest)) return largest;
  for (double value : values) squares += (value / largest) * (value / largest);
  return largest * std::sqrt(squares);
}

}  // namespace

double gamma(double k, double unit_roundoff) {
  const double product = k * unit_roundoff;
  return product < 1 ? product / (1 - product) : infinity;
}

double norm_bound(machine::Dtype dtype, int depth, double longest_sum) {
  constexpr double k = 4, c = 1.03;
  const machine::Dtype accumulator =
      dtype == machine::Dtype::float64 ? machine::Dtype::float64 : machine::Dtype::float32;
  const double epsilon = 2 * machine::unit_roundoff(dtype) +
                         std::sqrt(longest_sum) * machine::unit_roundoff(accumulator);
  return k * std::pow(c, depth) * epsilon;
}

Comparison compare_elements(std::span<const double> actual, std::span<const double> expected,
                            std::span<const double> bounds) {
  Comparison result;
  if (!same_size(actual.size(), expected.size(), result)) return result;
  if (!same_size(bounds.size(), expected.size(), result)) {
    result.text += " (bounds)";
    return result;
  }
  result.right = true;
  double worst_ratio = -1;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]);
    const bool finite = all_finite(actual[i], expected[i], bounds[i]);
    const bool right = finite && error <= bounds[i];
    const double ratio = right && error == 0       ? 0
                         : finite && bounds[i] > 0 ? error / bounds[i]
                                                   : infinity;
    result.right = result.right && right;
    if (ratio > worst_ratio) {
      worst_ratio = ratio;
      result.worst = i;
      result.error = error;
      result.bound = bounds[i];
    }
  }
  result.text = actual.empty()
                    ? "no elements"
                    : fmt::format("element {}: {:.9g}, expected {:.9g}, error {:.3g}, bound {:.3g}",
                                  result.worst, actual[result.worst], expected[result.worst],
                                  result.error, result.bound);
  return result;
}

Comparison compare_norms(std::span<const double> actual, std::span<const double> expected,
                         double relative_bound) {
  Comparison result;
  result.bound = relative_bound;
  if (!same_size(actual.size(), expected.size(), result)) return result;
  double worst = -1;
  bool finite = std::isfinite(relative_bound);
  std::vector<double> errors(actual.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    errors[i] = std::abs(actual[i] - expected[i]);
    if (!all_finite(actual[i], expected[i])) {
      finite = false;
      errors[i] = infinity;
    }
    if (errors[i] > worst) {
      worst = errors[i];
      result.worst = i;
    }
  }
  const double difference = norm_of(errors), norm = norm_of(expected);
  // Infinite if the reference is all zero.
  result.error = !finite ? infinity : difference == 0 ? 0 : difference / norm;
  result.right = finite && std::isfinite(norm) && difference <= relative_bound * norm;
  result.text = actual.empty() ? "no elements"
                               : fmt::format(
                                     "relative norm of the error {:.3g}, bound {:.3g}; largest at "
                                     "element {}: {:.9g}, expected {:.9g}",
                                     result.error, relative_bound, result.worst,
                                     actual[result.worst], expected[result.worst]);
  return result;
}

Comparison compare_bits(std::span<const double> actual, std::span<const double> expected) {
  Comparison result;
  if (!same_size(actual.size(), expected.size(), result)) return result;
  result.right = true;
  std::size_t differing = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const bool same =
        std::bit_cast<std::uint64_t>(actual[i]) == std::bit_cast<std::uint64_t>(expected[i]);
    if (same && std::isfinite(actual[i])) continue;
    if (differing++ == 0) {
      result.worst = i;
      result.error = std::abs(actual[i] - expected[i]);
    }
  }
  if (differing == 0) {
    result.text = fmt::format("{} elements equal bit by bit", actual.size());
    return result;
  }
  result.right = false;
  result.text = fmt::format("{} of {} elements differ, first element {}: {:.17g}, expected {:.17g}",
                            differing, actual.size(), result.worst, actual[result.worst],
                            expected[result.worst]);
  return result;
}

Comparison compare_error(double error, double bound) {
  return {.right = all_finite(error, bound) && error <= bound,
          .error = error,
          .bound = bound,
          .text = fmt::format("error {:.3g}, bound {:.3g}", error, bound)};
}

}  // namespace harness
