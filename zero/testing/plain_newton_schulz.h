#pragma once
// For tests: Newton-Schulz in plain loops of doubles, and bounds of its errors.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace zero::testing {

struct PlainMatrix {
  std::size_t rows = 0, columns = 0;
  std::vector<double> at = {};
  double& operator()(std::size_t i, std::size_t j) { return at[i * columns + j]; }
  double operator()(std::size_t i, std::size_t j) const { return at[i * columns + j]; }
};

inline PlainMatrix product(const PlainMatrix& a, const PlainMatrix& b) {
  PlainMatrix c{a.rows, b.columns, std::vector<double>(a.rows * b.columns)};
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t k = 0; k < a.columns; ++k)
      for (std::size_t j = 0; j < b.columns; ++j) c(i, j) += a(i, k) * b(k, j);
  return c;
}
inline PlainMatrix transposed(const PlainMatrix& a) {
  PlainMatrix b{a.columns, a.rows, std::vector<double>(a.at.size())};
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t j = 0; j < a.columns; ++j) b(j, i) = a(i, j);
  return b;
}
inline double norm(const PlainMatrix& a) {
  double squares = 0;
  for (const double value : a.at) squares += value * value;
  return std::sqrt(squares);
}

struct PlainQuintic {
  double a, b, c;
};
inline std::vector<PlainQuintic> jordans(int steps) {
  return std::vector<PlainQuintic>(static_cast<std::size_t>(steps), {3.4445F, -4.7750F, 2.0315F});
}

// X <- a X + b X Xᵀ X + c X Xᵀ X Xᵀ X
inline PlainMatrix orthogonalized(PlainMatrix x, const std::vector<PlainQuintic>& steps) {
  const double size = norm(x);
  if (size == 0) return x;
  for (double& value : x.at) value /= size;
  for (const auto& [a, b, c] : steps) {
    const PlainMatrix square = product(x, transposed(x)), third = product(square, x),
                      fifth = product(square, third);
    for (std::size_t i = 0; i < x.at.size(); ++i)
      x.at[i] = a * x.at[i] + b * third.at[i] + c * fifth.at[i];
  }
  return x;
}

// Returns the largest slope of the steps from `first` on, over singular values up to `top`, and the
// largest value after step `first`: on a fine grid, and 1 % more. The polynomials are odd, so the
// slope also bounds the change of a matrix in the 2-norm.
struct Steepest {
  double slope = 0, top = 0;
};
inline Steepest steepest(const std::vector<PlainQuintic>& steps, std::size_t first, double top) {
  Steepest most;
  for (int i = 0; i <= 1000; ++i) {
    double s = top * i / 1000, slope = 1;
    for (std::size_t step = first; step < steps.size(); ++step) {
      const auto& [a, b, c] = steps[step];
      slope *= a + 3 * b * s * s + 5 * c * s * s * s * s;
      s = std::abs(a * s + b * s * s * s + c * s * s * s * s * s);
      if (step == first) most.top = std::max(most.top, 1.01 * s);
    }
    most.slope = std::max(most.slope, 1.01 * std::abs(slope));
  }
  return most;
}

// Returns a bound of the 2-norm of the result's error, if each operation rounds by `roundoff` and
// the relative error of the input's 2-norm is `relative`.
inline double orthogonalized_error(const PlainMatrix& x, const std::vector<PlainQuintic>& steps,
                                   double relative, double roundoff) {
  const double extent = std::sqrt(static_cast<double>(std::min(x.rows, x.columns)));
  const auto terms = static_cast<double>(x.rows + x.columns);
  double error = 0, added = std::min(2 * relative, 2.0) + 4 * roundoff, top = 1;
  for (std::size_t step = 0; step < steps.size(); ++step) {
    const Steepest of = steepest(steps, step, top);
    error += of.slope * added;
    // The error of products of at most `terms` terms each, for a matrix whose 2-norm is at most
    // `top`.
    const auto& [a, b, c] = steps[step];
    added = terms * roundoff * extent *
            (2 * a * top + 3 * std::abs(b) * std::pow(top, 3) + 5 * c * std::pow(top, 5));
    top = of.top;
  }
  return std::min(error + added, 2 * top * extent);
}

// Returns the singular values by one-sided Jacobi rotations of the columns (Hestenes 1958).
inline std::vector<double> singular_values(PlainMatrix x) {
  if (x.rows < x.columns) x = transposed(x);
  for (int sweep = 0; sweep < 60; ++sweep)
    for (std::size_t p = 0; p < x.columns; ++p)
      for (std::size_t q = p + 1; q < x.columns; ++q) {
        double pp = 0, qq = 0, pq = 0;
        for (std::size_t i = 0; i < x.rows; ++i) {
          pp += x(i, p) * x(i, p);
          qq += x(i, q) * x(i, q);
          pq += x(i, p) * x(i, q);
        }
        if (std::abs(pq) <= 1e-15 * std::sqrt(pp * qq)) continue;
        const double cotangent = (qq - pp) / (2 * pq);
        const double tangent = (cotangent >= 0 ? 1 : -1) /
                               (std::abs(cotangent) + std::sqrt(1 + cotangent * cotangent));
        const double cosine = 1 / std::sqrt(1 + tangent * tangent), sine = cosine * tangent;
        for (std::size_t i = 0; i < x.rows; ++i) {
          const double left = x(i, p), right = x(i, q);
          x(i, p) = cosine * left - sine * right;
          x(i, q) = sine * left + cosine * right;
        }
      }
  std::vector<double> values;
  for (std::size_t j = 0; j < x.columns; ++j) {
    double squares = 0;
    for (std::size_t i = 0; i < x.rows; ++i) squares += x(i, j) * x(i, j);
    values.push_back(std::sqrt(squares));
  }
  return values;
}

}  // namespace zero::testing
