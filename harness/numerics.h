#pragma once
// Comparisons of a result with its reference, each naming the worst element. Relative bounds only:
// there is no absolute tolerance, so where the bound is zero the values must be equal. NaN and
// infinity never pass, whether in the result, in the reference or in a bound.

#include <cstddef>
#include <span>
#include <string>

namespace harness {

// k roundings, each of relative size u: gamma_k = k u / (1 - k u) (Higham 2002, Lemma 3.1).
// Infinite when k u >= 1: nothing is known then, and no comparison passes.
double gamma(double k, double unit_roundoff);

struct Comparison {
  bool right = false;
  double error = 0, bound = 0;  // of the worst element; of the norms
  std::size_t worst = 0;        // its index
  std::string text;             // "element 17: 1.25 against 1.5, error 0.25, bound 0.125"
};

// |actual[i] - expected[i]| <= bounds[i]. The worst element is the one with the largest error /
// bound.
Comparison compare_elements(std::span<const double> actual, std::span<const double> expected,
                            std::span<const double> bounds);
// ||actual - expected||_2 <= relative_bound * ||expected||_2; error is ||actual - expected|| /
// ||expected||.
Comparison compare_norms(std::span<const double> actual, std::span<const double> expected,
                         double relative_bound);
// The same bits: 0.0 and -0.0 differ.
Comparison compare_bits(std::span<const double> actual, std::span<const double> expected);
// error <= bound.
Comparison compare_error(double error, double bound);

}  // namespace harness
