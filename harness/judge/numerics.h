#pragma once
// Comparisons of a result with its reference, each naming the worst element. Relative bounds only:
// there is no absolute tolerance, so where the bound is zero the values must be equal. NaN and
// infinity never pass, whether in the result, in the reference or in a bound.

#include <cstddef>
#include <span>
#include <string>

#include "machine/device/dtype.h"

namespace harness {

// k roundings, each of relative size u: gamma_k = k u / (1 - k u) (Higham 2002, Lemma 3.1).
// Infinite when k u >= 1: nothing is known then, and no comparison passes.
double gamma(double k, double unit_roundoff);

// Of what a network computes in dtype, by norms: how far an output or a gradient may be from that
// in exact arithmetic, when it starts from the same values,
//
//   ||computed - exact||_2 <= k C^depth epsilon ||exact||_2,   k = 4, C = 1.03
//
// (arXiv:2506.09280, theorem 5.3), depth the number of layers that the error has passed: 1 for what
// one layer makes of exact inputs. The premise is residual branches that are small beside the
// stream.
//
// epsilon is what one operation adds: twice the unit roundoff u of what is stored, as there (an
// operation reads rounded inputs and rounds its result), and sqrt(longest_sum) of the accumulator's
// u_a for the additions between (of n terms at most n - 1 roundings of random sign meet any one:
// Higham and Mary 2019, doi:10.1137/18M1226312). Under bfloat16 and half the second is nothing;
// under float and double most of it.
//
// Cutting over t ranks rounds t partial results, each about 1/sqrt(t) of the whole, and t - 1 sums
// of them: of random sign sqrt(1 + t/2) u together, within k epsilon >= 8 u as far as t = 64. So
// the bound is the same at every degree, and two runs that both round may part by twice as much.
double norm_bound(machine::Dtype dtype, int depth, double longest_sum);

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
