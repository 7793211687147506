#include "suite/pipeline/part_reference.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "harness/judge/numerics.h"
#include "suite/reference/bounded.h"

namespace suite {
namespace {

using harness::gamma;
using machine::Dtype;

struct Checked {
  std::vector<double> actual, expected, bounds;
  void add(double got, const Bounded& wanted) {
    actual.push_back(got);
    expected.push_back(wanted.value);
    bounds.push_back(wanted.error);
  }
};

// For the tanh form of GELU, x s(t) with t = 2 sqrt(2/pi) (x + 0.044715 x^3) and s the logistic
// function: the largest slope (1.12899, at 1.42) and the largest curvature (0.79788, at 0), and the
// largest |x| s (1 - s) dt/dx (0.243, near 1).
constexpr double steepest = 1.13, most_curved = 0.8, bend = 0.25;

double exponent(double x) {
  return 2 * std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
}
double gelu(double x) { return x / (1 + std::exp(-exponent(x))); }
double gelu_slope(double x) {
  const double s = 1 / (1 + std::exp(-exponent(x)));
  return s + x * s * (1 - s) * 2 * std::sqrt(2 / std::numbers::pi) * (1 + 3 * 0.044715 * x * x);
}

class PartReference {
 public:
  PartReference(Dtype dtype, std::int64_t hidden, const std::vector<double>& weight)
      : hidden_(hidden), weight_(weight) {
    const bool narrow = dtype == Dtype::bfloat16 || dtype == Dtype::float16;
    // Sums are kept in float or double; the reference rounds too.
    sum_roundoff_ = machine::unit_roundoff(narrow ? Dtype::float32 : dtype) + 0x1p-53;
    store_roundoff_ = narrow ? machine::unit_roundoff(dtype) : 0;
    underflow_ = dtype == Dtype::float16 ? 0x1p-25 : 0;  // half of half's least number
  }

  double w(std::int64_t row, std::int64_t col) const {
    return weight_[static_cast<std::size_t>(row * hidden_ + col)];
  }

  // A product of `terms` terms, alpha and what is added to it: gamma_(terms + 2) of the sum of
  // magnitudes, in addition to the factors' own errors.
  double of_sum(double terms, double magnitude) const {
    return gamma(terms + 2, sum_roundoff_) * magnitude;
  }
  // Written in a narrower dtype: rounded once more.
  Bounded stored(double value, double error) const {
    return {value, error + store_roundoff_ * (std::abs(value) + error) + underflow_};
  }

  Bounded z(const double* x, std::int64_t col) const {
    double sum = 0, magnitude = 0;
    for (std::int64_t k = 0; k < hidden_; ++k) {
      sum += x[k] * w(k, col);
      magnitude += std::abs(x[k] * w(k, col));
    }
    return stored(sum, of_sum(static_cast<double>(hidden_), magnitude));
  }

  // z's error times the steepest slope; then the evaluation x / (1 + e^-t): 7 roundoffs of t, which
  // the exponential turns into 7 |t|, 4 of the exponential, 2 operations; 1 % for second orders.
  Bounded y(const Bounded& z) const {
    const double value = gelu(z.value), moved = steepest * z.error;
    const double t = exponent(std::abs(z.value) + z.error);
    return stored(value, moved + 1.01 * (7 * t + 6) * sum_roundoff_ * (std::abs(value) + moved));
  }

  // z's error times the largest curvature; then the evaluation s + x s (1 - s) t': of s as above
  // with two operations more, of the second term three times that and 16 operations.
  Bounded d_z(const Bounded& z, double d_y) const {
    const double t = exponent(std::abs(z.value) + z.error);
    const double evaluation = 1.01 * sum_roundoff_ * ((7 * t + 8) + bend * (3 * (7 * t + 4) + 16));
    return stored(d_y * gelu_slope(z.value), std::abs(d_y) * (most_curved * z.error + evaluation));
  }

  // Row of d_x = d_z W^T.
  std::vector<Bounded> d_x(const double* x, const double* d_y) const {
    std::vector<Bounded> d_zs, row;
    for (std::int64_t j = 0; j < hidden_; ++j) d_zs.push_back(d_z(z(x, j), d_y[j]));
    for (std::int64_t k = 0; k < hidden_; ++k) {
      double sum = 0, brought = 0, magnitude = 0;
      for (std::int64_t j = 0; j < hidden_; ++j) {
        const Bounded& d = d_zs[static_cast<std::size_t>(j)];
        sum += d.value * w(k, j);
        brought += d.error * std::abs(w(k, j));
        magnitude += (std::abs(d.value) + d.error) * std::abs(w(k, j));
      }
      row.push_back(stored(sum, brought + of_sum(static_cast<double>(hidden_), magnitude)));
    }
    return row;
  }

 private:
  std::int64_t hidden_;
  const std::vector<double>& weight_;
  double sum_roundoff_, store_roundoff_, underflow_;
};

}  // namespace

void judge_part(harness::Judge& judge, const std::string& name, Dtype dtype, std::int64_t tokens,
                std::int64_t hidden, const std::vector<double>& weight,
                const std::vector<double>& weight_gradient,
                const std::vector<PartObserved>& micro_batches) {
  const PartReference reference(dtype, hidden, weight);
  const auto at = [&](std::int64_t row, std::int64_t col) {
    return static_cast<std::size_t>(row * hidden + col);
  };
  Checked outputs, d_weights, d_inputs;
  const double terms = static_cast<double>(micro_batches.size()) * static_cast<double>(tokens + 1);
  for (const std::int64_t col : {std::int64_t{0}, hidden / 3, hidden - 1}) {
    std::vector<Bounded> column(static_cast<std::size_t>(hidden));
    std::vector<double> magnitudes(column.size());
    for (const PartObserved& seen : micro_batches) {
      for (std::int64_t row = 0; row < tokens; ++row) {
        const double* x = seen.x.data() + at(row, 0);
        const Bounded z = reference.z(x, col);
        outputs.add(seen.y[at(row, col)], reference.y(z));
        const Bounded d_z = reference.d_z(z, seen.d_y[at(row, col)]);
        for (std::size_t k = 0; k < column.size(); ++k) {
          column[k].value += x[k] * d_z.value;
          column[k].error += std::abs(x[k]) * d_z.error;
          magnitudes[k] += std::abs(x[k]) * (std::abs(d_z.value) + d_z.error);
        }
      }
    }
    // Gradients stay in the dtype of the sums: nothing is rounded once more.
    for (std::size_t k = 0; k < column.size(); ++k) {
      column[k].error += reference.of_sum(terms, magnitudes[k]);
      d_weights.add(weight_gradient[at(static_cast<std::int64_t>(k), col)], column[k]);
    }
  }
  const auto check_row = [&](const PartObserved& seen, std::int64_t row) {
    const auto expected = reference.d_x(seen.x.data() + at(row, 0), seen.d_y.data() + at(row, 0));
    for (std::int64_t col = 0; col < hidden; ++col)
      d_inputs.add(seen.d_x[at(row, col)], expected[static_cast<std::size_t>(col)]);
  };
  check_row(micro_batches.front(), 0);
  check_row(micro_batches.back(), tokens - 1);
  judge.numerics(fmt::format("{} outputs in double", name), outputs.actual, outputs.expected,
                 outputs.bounds);
  judge.numerics(fmt::format("{} input gradients in double", name), d_inputs.actual,
                 d_inputs.expected, d_inputs.bounds);
  judge.numerics(fmt::format("{} weight gradients in double", name), d_weights.actual,
                 d_weights.expected, d_weights.bounds);
}

}  // namespace suite
