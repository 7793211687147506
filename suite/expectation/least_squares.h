#pragma once
// Fits times as sums of two costs: t = first * a + second * b, both factors at least 0, with the
// least squares of relative errors.

#include <vector>

namespace suite {

struct TimedCost {
  double a = 0, b = 0;
  double seconds = 0;
};

struct TwoFactors {
  double first = 0, second = 0;
  double seconds(const TimedCost& cost) const { return first * cost.a + second * cost.b; }
};

// Requires at least one time above 0.
TwoFactors fit_two(const std::vector<TimedCost>& times);
// Fits only `second`; `first` is given.
TwoFactors fit_second(const std::vector<TimedCost>& times, double first);

// Returns the mean of |fitted / measured - 1|.
double mean_error(const std::vector<TimedCost>& times, const TwoFactors& factors);

}  // namespace suite
