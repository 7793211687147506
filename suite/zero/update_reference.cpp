#include "suite/zero/update_reference.h"

#include <algorithm>
#include <cmath>

#include "harness/judge/numerics.h"

namespace suite {

using harness::gamma;

namespace {

constexpr double double_roundoff = 0x1p-53;

// Half the least distance of two numbers: what rounding adds where they are no longer normal. Only
// half gets there with the values used here.
double underflow(machine::Dtype dtype) { return dtype == machine::Dtype::float16 ? 0x1p-25 : 0; }

}  // namespace

// Sums: n terms have n - 1 additions between them in any order, so the error of each is at most
// gamma_(n-1) sum |terms|. On a narrower wire each term (or a sum of some) is rounded once more,
// and all count as if they were made in its dtype; where it underflows, each of the n roundings of
// terms and of the n - 1 additions adds what that may lose.
//
// Norm: the sums' errors e move it by ||e||_2 at most. Its squares are added up in double, by the
// judged side and here, each sum within gamma_(N+1) (one product, N - 1 additions, one more where
// ranks add partial sums), so each root within half of that and one rounding.
UpdateReference::UpdateReference(
    const UpdateCase& the_case,
    const std::function<double(int rank, std::int64_t index)>& contribution)
    : case_(the_case),
      roundoff_(machine::unit_roundoff(the_case.gradient_dtype) + double_roundoff) {
  const auto elements = static_cast<std::size_t>(case_.elements);
  gradients_.values.resize(elements);
  gradients_.bounds.resize(elements);
  const bool narrow = case_.wire_dtype != case_.gradient_dtype;
  const double wire_roundoff = machine::unit_roundoff(case_.wire_dtype) + double_roundoff;
  const int roundings = case_.ranks - (narrow ? 0 : 1);
  double squares = 0, error_squares = 0;
  for (std::size_t i = 0; i < elements; ++i) {
    double sum = 0, magnitude = 0;
    for (int rank = 0; rank < case_.ranks; ++rank) {
      const double term = contribution(rank, static_cast<std::int64_t>(i));
      sum += term;
      magnitude += std::abs(term);
    }
    const double error = gamma(roundings, wire_roundoff) * magnitude +
                         (narrow ? 2 * case_.ranks * underflow(case_.wire_dtype) : 0);
    gradients_.values[i] = sum;
    gradients_.bounds[i] = error;
    squares += sum * sum;
    error_squares += error * error;
  }
  const double n = static_cast<double>(case_.elements);
  norm_ = std::sqrt(squares) / case_.divisor;
  norm_bound_ = std::sqrt(error_squares) / case_.divisor * (1 + gamma(n + 4, double_roundoff)) +
                norm_ * gamma(n + 4, double_roundoff);
  if (norm_ <= case_.clip_norm) return;
  clip_factor_ = case_.clip_norm / norm_;
  const double relative = norm_bound_ / norm_;
  scale_error_ = relative / (1 - relative) * (1 + gamma(2, double_roundoff));
}

// x = s g with s = clip / divisor: the division and the cast of s and one product round.
// x^ = g^ s (1 + rho)(1 + theta_3), |g^ - g| <= e, |rho| <= scale_error.
Bounded UpdateReference::scaled_gradient(std::size_t i) const {
  const double scale = clip_factor_ / case_.divisor;
  const double g = std::abs(gradients_.values[i]), e = gradients_.bounds[i];
  const double factor = (1 + scale_error_) * (1 + gamma(3, roundoff_)) - 1;
  return {scale * gradients_.values[i], scale * (e + factor * (g + e))};
}

// A narrower value is its master rounded once more.
Expected UpdateReference::rounded_to_values(const std::vector<Bounded>& masters) const {
  const bool narrow = case_.value_dtype != case_.gradient_dtype;
  Expected expected;
  for (const Bounded& master : masters) {
    const double again = narrow ? machine::unit_roundoff(case_.value_dtype) *
                                          (std::abs(master.value) + master.error) +
                                      underflow(case_.value_dtype)
                                : 0;
    expected.values.push_back(master.value);
    expected.bounds.push_back(master.error + again);
  }
  return expected;
}

// w = w0 - lr x: the cast of lr and the product round, then the difference.
Expected UpdateReference::after_sgd(double learning_rate,
                                    const std::vector<double>& initial) const {
  std::vector<Bounded> masters;
  for (std::size_t i = 0; i < initial.size(); ++i) {
    const Bounded x = scaled_gradient(i);
    const double moved =
        learning_rate * (x.error + gamma(2, roundoff_) * (std::abs(x.value) + x.error));
    const double w = initial[i] - learning_rate * x.value;
    masters.push_back({w, moved + roundoff_ * (std::abs(w) + moved)});
  }
  return rounded_to_values(masters);
}

// From zero moments the corrected ones are x and x^2, so the direction is f(x) = x / (|x| + eps).
//
// Propagation of x's error e: f' = eps / (|x| + eps)^2 falls with |x|, so |f(x^) - f(x)| is at most
// e eps / (max(|x| - e, 0) + eps)^2, and at most 2, as |f| < 1: the update of an element moves by
// 2 lr at most, whatever its gradient's error.
// Roundings of f(x^): first moment, corrected: two casts, product, sum, division: 5. Second: the
// square too: 6, of which the root keeps no more, and itself: 7; with the cast of eps and the sum
// the denominator has 8, as both its terms are positive. The division: 14 in all.
// Decay: cast and product. Then their sum, the cast of lr and the product: 3; then the difference.
Expected UpdateReference::after_adamw(const machine::AdamW& options,
                                      const std::vector<double>& initial,
                                      const std::vector<bool>& decays) const {
  std::vector<Bounded> masters;
  for (std::size_t i = 0; i < initial.size(); ++i) {
    const Bounded x = scaled_gradient(i);
    const double direction = x.value / (std::abs(x.value) + options.epsilon);
    const double nearest = std::max(std::abs(x.value) - x.error, 0.0) + options.epsilon;
    const double moved = std::min(2.0, x.error * options.epsilon / (nearest * nearest));
    const double direction_error = moved + gamma(14, roundoff_) * (std::abs(direction) + moved);
    const double shrink = decays[i] ? options.weight_decay * initial[i] : 0;
    const double shrink_error = gamma(2, roundoff_) * std::abs(shrink);
    const double largest = std::abs(direction) + direction_error + std::abs(shrink) + shrink_error;
    const double error =
        options.learning_rate * (direction_error + shrink_error + gamma(3, roundoff_) * largest);
    const double w = initial[i] - options.learning_rate * (direction + shrink);
    masters.push_back({w, error + roundoff_ * (std::abs(w) + error)});
  }
  return rounded_to_values(masters);
}

}  // namespace suite
