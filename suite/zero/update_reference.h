#pragma once
// One optimizer step from zero state in double, element by element, with a bound on its distance
// from the same step in the judged dtypes. Uses closed forms of the papers, from the gradients that
// all ranks contribute. Shares no code with zero/ or the kernels.
//
// Notation of the derivations: u is the gradient dtype's unit roundoff plus that of double, because
// the reference rounds too. gamma_k bounds the product of k factors (1 + d)^(+-1), |d| <= u (Higham
// 2002, "Accuracy and Stability of Numerical Algorithms", Lemma 3.1). A hat marks computed values.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "harness/judge/numerics.h"
#include "machine/device/dtype.h"
#include "machine/device/kernels.h"
#include "suite/reference/bounded.h"

namespace suite {

struct Expected {
  std::vector<double> values, bounds;

  void add(double value, double bound) {
    values.push_back(value);
    bounds.push_back(bound);
  }
};

struct UpdateCase {
  int ranks = 1;  // contributions to an element: each micro-batch of a rank counts
  std::int64_t elements = 0;
  machine::Dtype value_dtype{}, gradient_dtype{};  // gradient_dtype: contributions are added up in
  double divisor = 1, clip_norm = 1;
  machine::Dtype wire_dtype =
      gradient_dtype;      // if another, sums of contributions are rounded to it
  double predivision = 1;  // divides contributions before the wire and multiplies sums after it
  // By element, a bound on the error of contributions that are sent in a few bits; empty: none.
  std::vector<double> quantization = {};

  machine::Dtype master_dtype() const {
    return value_dtype == machine::Dtype::float64 ? value_dtype : machine::Dtype::float32;
  }
};

class UpdateReference {
 public:
  // contribution(rank, index): the part of a rank, exact in the gradient's dtype.
  //
  // Sums: n terms have n - 1 additions between them in any order, so the error of each is at most
  // gamma_(n-1) sum |terms|. On a wire of another dtype each term (or a sum of some terms) is
  // rounded once more, and the sum over ranks once more if it returns to 16 bits. All roundings
  // count as if they were made in the narrowest dtype. If it underflows, each of them, at most 2 n
  // + 4, adds its largest loss.
  //
  // Norm: the sums' errors e change it by at most ||e||_2. The judged side and the reference sum
  // its squares in double. Each sum is within gamma_(N+1) (one product, N - 1 additions, one more
  // if ranks add partial sums), so each root is within half of that and one rounding.
  UpdateReference(const UpdateCase& the_case,
                  const std::function<double(int rank, std::int64_t index)>& contribution)
      : case_(the_case),
        roundoff_(machine::unit_roundoff(the_case.master_dtype()) + double_roundoff) {
    const bool converts = case_.wire_dtype != case_.gradient_dtype;
    const double coarsest = std::max(machine::unit_roundoff(case_.wire_dtype),
                                     machine::unit_roundoff(case_.gradient_dtype)) +
                            double_roundoff;
    const int roundings = case_.ranks +
                          (!converts                         ? -1
                           : is_narrow(case_.gradient_dtype) ? 2
                                                             : 0) +
                          (case_.predivision == 1 ? 0 : 3);  // quotient, product, their factors
    const double lost = std::max(underflow(case_.wire_dtype), underflow(case_.gradient_dtype)) *
                        std::max(1.0, case_.predivision);
    double squares = 0, error_squares = 0;
    for (std::int64_t i = 0; i < case_.elements; ++i) {
      double sum = 0, magnitude = 0;
      for (int rank = 0; rank < case_.ranks; ++rank) {
        const double term = contribution(rank, i);
        sum += term;
        magnitude += std::abs(term);
      }
      const double coded = case_.quantization.empty() ? 0 : case_.quantization[i];
      const double error = coded + harness::gamma(roundings, coarsest) * (magnitude + coded) +
                           (2 * case_.ranks + 4) * lost;
      gradients_.add(sum, error);
      squares += sum * sum;
      error_squares += error * error;
    }
    const double in_double =
        harness::gamma(static_cast<double>(case_.elements) + 4, double_roundoff);
    norm_ = std::sqrt(squares) / case_.divisor;
    norm_bound_ = std::sqrt(error_squares) / case_.divisor * (1 + in_double) + norm_ * in_double;
    if (norm_ <= case_.clip_norm) return;
    clip_factor_ = case_.clip_norm / norm_;
    const double relative = norm_bound_ / norm_;
    constexpr double any = 1e100;  // the norm may be near zero
    scale_error_ =
        relative < 1 ? relative / (1 - relative) * (1 + harness::gamma(2, double_roundoff)) : any;
  }

  const Expected& gradients() const { return gradients_; }  // the sums, without division
  double norm() const { return norm_; }                     // norm of the divided sums
  double norm_bound() const { return norm_bound_; }
  double clip_factor() const { return clip_factor_; }
  double clip_bound() const { return clip_factor_ * scale_error_; }

  // Values after one step. initial: exact in the value's dtype.
  //
  // w = w0 - lr x has three roundings: the cast of lr, the product, and the difference.
  Expected after_sgd(double learning_rate, const std::vector<double>& initial) const {
    Expected values;
    for (std::size_t i = 0; i < initial.size(); ++i) {
      const Bounded x = scaled_gradient(i);
      const double moved =
          learning_rate * (x.error + harness::gamma(2, roundoff_) * (std::abs(x.value) + x.error));
      add_value(values, initial[i] - learning_rate * x.value, moved);
    }
    return values;
  }

  // From zero moments the corrected moments are x and x^2, so the direction is f(x) = x / (|x| +
  // eps).
  //
  // Propagation of x's error e: f' = eps / (|x| + eps)^2 decreases with |x|, so |f(x^) - f(x)| is
  // at most e eps / (max(|x| - e, 0) + eps)^2. It is also at most 2, because |f| < 1: the update of
  // an element changes by at most 2 lr, for every error of its gradient.
  // Roundings of f(x^). The corrected first moment has 5: two casts, product, sum, division. The
  // second moment has 6, with the square. The root has at most these 6, and its own: 7. The
  // denominator has 8, with the cast of eps and the sum, because both its terms are positive. The
  // division makes 14 in total.
  // Roundings of the decay: cast and product. The sum of direction and decay, the cast of lr and
  // the product add 3. The difference follows.
  Expected after_adamw(const machine::AdamW& options, const std::vector<double>& initial,
                       const std::vector<bool>& decays) const {
    Expected values;
    for (std::size_t i = 0; i < initial.size(); ++i) {
      const Bounded x = scaled_gradient(i);
      const double direction = x.value / (std::abs(x.value) + options.epsilon);
      const double nearest = std::max(std::abs(x.value) - x.error, 0.0) + options.epsilon;
      const double moved = std::min(2.0, x.error * options.epsilon / (nearest * nearest));
      const double direction_error =
          moved + harness::gamma(14, roundoff_) * (std::abs(direction) + moved);
      const double shrink = decays[i] ? options.weight_decay * initial[i] : 0;
      const double shrink_error = harness::gamma(2, roundoff_) * std::abs(shrink);
      const double largest =
          std::abs(direction) + direction_error + std::abs(shrink) + shrink_error;
      add_value(values, initial[i] - options.learning_rate * (direction + shrink),
                options.learning_rate *
                    (direction_error + shrink_error + harness::gamma(3, roundoff_) * largest));
    }
    return values;
  }

 private:
  static constexpr double double_roundoff = 0x1p-53;

  static bool is_narrow(machine::Dtype dtype) { return size_of(dtype) == 2; }

  // Returns half the smallest distance between two numbers: the error that rounding adds to numbers
  // that are not normal. With the values used here, only half has such numbers.
  static double underflow(machine::Dtype dtype) {
    return dtype == machine::Dtype::float16 ? 0x1p-25 : 0;
  }

  // x = s g with s = clip / divisor has three roundings: the division and the cast of s, and one
  // product. x^ = g^ s (1 + rho)(1 + theta_3), |g^ - g| <= e, |rho| <= scale_error.
  Bounded scaled_gradient(std::size_t i) const {
    const double scale = clip_factor_ / case_.divisor;
    const double g = std::abs(gradients_.values[i]), e = gradients_.bounds[i];
    const double factor = (1 + scale_error_) * (1 + harness::gamma(3, roundoff_)) - 1;
    return {scale * gradients_.values[i], scale * (e + factor * (g + e))};
  }

  // Adds a value whose master is w, with this error before its own rounding. A narrower value has
  // one more rounding than its master.
  void add_value(Expected& values, double w, double moved) const {
    const double error = moved + roundoff_ * (std::abs(w) + moved);
    const bool narrow = is_narrow(case_.value_dtype);
    const double again = narrow
                             ? machine::unit_roundoff(case_.value_dtype) * (std::abs(w) + error) +
                                   underflow(case_.value_dtype)
                             : 0;
    values.add(w, error + again);
  }

  UpdateCase case_;
  double roundoff_;
  Expected gradients_;
  double norm_ = 0, norm_bound_ = 0, clip_factor_ = 1;
  double scale_error_ = 0;  // relative error of the scale, which includes the clipping
};

}  // namespace suite
