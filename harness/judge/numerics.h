#pragma once
// Comparisons of a result with its reference, each with the worst element. The absolute tolerance
// is 0, so a zero bound requires equality. NaN and infinity never pass, in result, reference or
// bound.

#include <cstddef>
#include <span>
#include <string>

#include "machine/device/dtype.h"

namespace harness {

// k roundings, each of relative size u: gamma_k = k u / (1 - k u) (Higham 2002, Lemma 3.1).
// Infinite if k u >= 1: no bound is known then, and no comparison passes.
double gamma(double k, double unit_roundoff);

// Bound, by norms, of the distance of a network's output or gradient, computed in dtype, from the
// result in exact arithmetic with the same start values:
//
//   ||computed - exact||_2 <= k C^depth epsilon ||exact||_2,   k = 4, C = 1.03
//
// (arXiv:2506.09280, theorem 5.3). depth is the number of layers that the error has passed: 1 for
// one layer with exact inputs. The premise is that residual branches are small compared with the
// stream.
//
// epsilon is the error of one operation: twice the unit roundoff u of the stored dtype, as in the
// paper (an operation reads rounded inputs and rounds its result), plus sqrt(longest_sum) times the
// accumulator's u_a for the additions (at most n - 1 roundings of random sign for n terms: Higham
// and Mary 2019, doi:10.1137/18M1226312). The second term is negligible for bfloat16 and half, and
// dominates for float and double.
//
// Splitting over t ranks rounds t partial results, each about 1/sqrt(t) of the whole, and t - 1
// sums of them: with random signs sqrt(1 + t/2) u in total, within k epsilon >= 8 u up to t = 64.
// So the bound is the same for every degree, and two rounded runs may differ by twice as much.
double norm_bound(machine::Dtype dtype, int depth, double longest_sum);

struct Comparison {
  bool right = false;
  double error = 0, bound = 0;  // of the worst element; of the norms
  std::size_t worst = 0;        // its index
  std::string text;             // "element 17: 1.25, expected 1.5, error 0.25, bound 0.125"
};

// |actual[i] - expected[i]| <= bounds[i]. The worst element is the one with the largest error /
// bound.
Comparison compare_elements(std::span<const double> actual, std::span<const double> expected,
                            std::span<const double> bounds);
// ||actual - expected||_2 <= relative_bound * ||expected||_2; error is ||actual - expected|| /
// ||expected||.
Comparison compare_norms(std::span<const double> actual, std::span<const double> expected,
                         double relative_bound);
// Compares bits: 0.0 and -0.0 differ.
Comparison compare_bits(std::span<const double> actual, std::span<const double> expected);
// error <= bound.
Comparison compare_error(double error, double bound);

}  // namespace harness
