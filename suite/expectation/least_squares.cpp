#include "suite/expectation/least_squares.h"

#include <algorithm>
#include <cmath>

namespace suite {
namespace {

double squares(const std::vector<TimedCost>& times, const TwoFactors& factors) {
  double sum = 0;
  for (const TimedCost& one : times) {
    const double error = factors.seconds(one) / one.seconds - 1;
    sum += error * error;
  }
  return sum;
}

}  // namespace

TwoFactors fit_second(const std::vector<TimedCost>& times, double first) {
  double bb = 0, b = 0;
  for (const TimedCost& one : times) {
    const double part = one.b / one.seconds;
    bb += part * part;
    b += part * (1 - first * one.a / one.seconds);
  }
  return {first, bb > 0 ? std::max(0.0, b / bb) : 0};
}

TwoFactors fit_two(const std::vector<TimedCost>& times) {
  double aa = 0, ab = 0, bb = 0, a = 0, b = 0;
  for (const TimedCost& one : times) {
    const double x = one.a / one.seconds, y = one.b / one.seconds;
    aa += x * x;
    ab += x * y;
    bb += y * y;
    a += x;
    b += y;
  }
  const double determinant = aa * bb - ab * ab;
  const TwoFactors only_second = fit_second(times, 0), only_first{aa > 0 ? a / aa : 0, 0};
  // Costs that are proportional to each other do not determine two factors.
  if (determinant > 1e-9 * aa * bb) {
    const TwoFactors both{(a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant};
    if (both.first >= 0 && both.second >= 0) return both;
  }
  return squares(times, only_second) <= squares(times, only_first) ? only_second : only_first;
}

double mean_error(const std::vector<TimedCost>& times, const TwoFactors& factors) {
  double sum = 0;
  for (const TimedCost& one : times) sum += std::abs(factors.seconds(one) / one.seconds - 1);
  return sum / static_cast<double>(times.size());
}

}  // namespace suite
