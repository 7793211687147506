#pragma once
// One part y = gelu(x W) and its gradients in double, from the inputs of the stage, with bounds on
// the error of its dtype. Shares no code with the kernels. Checks a sample: three columns for y and
// the weights' gradient, two rows for the input's.
//
// Each part is judged separately. A bound carried through a chain of parts grows per part by the
// sum over a column of |W|, some 0.8 sqrt(2 hidden / pi), and soon has no meaning. The comparison
// with one device shows that the chain keeps every bit.

#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <vector>

#include "harness/judge/judge.h"
#include "harness/judge/numerics.h"
#include "machine/device/dtype.h"
#include "suite/reference/bounded.h"

namespace suite {

// The tensors of one micro-batch, all [tokens, hidden].
struct PartObserved {
  std::vector<double> x, y, d_y, d_x;
};

class PartReference {
 public:
  // weight: [hidden, hidden].
  PartReference(machine::Dtype dtype, std::int64_t tokens, std::int64_t hidden,
                const std::vector<double>& weight)
      : tokens_(tokens), hidden_(hidden), weight_(weight) {
    const bool narrow = dtype == machine::Dtype::bfloat16 || dtype == machine::Dtype::float16;
    // Sums are kept in float or double; the reference rounds too.
    sum_roundoff_ = machine::unit_roundoff(narrow ? machine::Dtype::float32 : dtype) + 0x1p-53;
    store_roundoff_ = narrow ? machine::unit_roundoff(dtype) : 0;
    underflow_ = dtype == machine::Dtype::float16 ? 0x1p-25 : 0;  // half of the smallest float16
  }

  void judge(harness::Judge& judge, const std::string& name,
             const std::vector<double>& weight_gradient,
             const std::vector<PartObserved>& micro_batches) const {
    Checked outputs, d_weights, d_inputs;
    const double terms =
        static_cast<double>(micro_batches.size()) * static_cast<double>(tokens_ + 1);
    for (const std::int64_t col : {std::int64_t{0}, hidden_ / 3, hidden_ - 1}) {
      std::vector<Bounded> column(static_cast<std::size_t>(hidden_));
      std::vector<double> magnitudes(column.size());
      for (const PartObserved& seen : micro_batches) {
        for (std::int64_t row = 0; row < tokens_; ++row) {
          const double* x = seen.x.data() + at(row, 0);
          const Bounded z = this->z(x, col);
          outputs.add(seen.y[at(row, col)], y(z));
          const Bounded d_z = this->d_z(z, seen.d_y[at(row, col)]);
          for (std::size_t k = 0; k < column.size(); ++k) {
            column[k].value += x[k] * d_z.value;
            column[k].error += std::abs(x[k]) * d_z.error;
            magnitudes[k] += std::abs(x[k]) * (std::abs(d_z.value) + d_z.error);
          }
        }
      }
      // Gradients stay in the dtype of the sums, so they have no further rounding.
      for (std::size_t k = 0; k < column.size(); ++k) {
        column[k].error += of_sum(terms, magnitudes[k]);
        d_weights.add(weight_gradient[at(static_cast<std::int64_t>(k), col)], column[k]);
      }
    }
    const auto check_row = [&](const PartObserved& seen, std::int64_t row) {
      const auto expected = d_x(seen.x.data() + at(row, 0), seen.d_y.data() + at(row, 0));
      for (std::int64_t col = 0; col < hidden_; ++col)
        d_inputs.add(seen.d_x[at(row, col)], expected[static_cast<std::size_t>(col)]);
    };
    check_row(micro_batches.front(), 0);
    check_row(micro_batches.back(), tokens_ - 1);
    outputs.judge(judge, name + " outputs in double");
    d_inputs.judge(judge, name + " input gradients in double");
    d_weights.judge(judge, name + " weight gradients in double");
  }

 private:
  struct Checked {
    std::vector<double> actual, expected, bounds;
    void add(double got, const Bounded& wanted) {
      actual.push_back(got);
      expected.push_back(wanted.value);
      bounds.push_back(wanted.error);
    }
    void judge(harness::Judge& judge, const std::string& what) const {
      judge.numerics(what, actual, expected, bounds);
    }
  };

  // Maxima for the tanh form of GELU, x s(t) with t = 2 sqrt(2/pi) (x + 0.044715 x^3) and s the
  // logistic function: of the slope (1.12899, at 1.42), of the curvature (0.79788, at 0), and of
  // |x| s (1 - s) dt/dx (0.243, near 1).
  static constexpr double steepest = 1.13, most_curved = 0.8, bend = 0.25;

  static double exponent(double x) {
    return 2 * std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  }
  static double gelu(double x) { return x / (1 + std::exp(-exponent(x))); }
  static double gelu_slope(double x) {
    const double s = 1 / (1 + std::exp(-exponent(x)));
    return s + x * s * (1 - s) * 2 * std::sqrt(2 / std::numbers::pi) * (1 + 3 * 0.044715 * x * x);
  }

  std::size_t at(std::int64_t row, std::int64_t col) const {
    return static_cast<std::size_t>(row * hidden_ + col);
  }
  double w(std::int64_t row, std::int64_t col) const { return weight_[at(row, col)]; }

  // Returns the error of a product of `terms` terms, alpha and an addend: gamma_(terms + 2) of the
  // sum of magnitudes, in addition to the factors' own errors.
  double of_sum(double terms, double magnitude) const {
    return harness::gamma(terms + 2, sum_roundoff_) * magnitude;
  }
  // Returns the value with the error of storing it. A narrower dtype adds one rounding.
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

  // Returns gelu(z). The error is that of z times the steepest slope, plus that of the evaluation x
  // / (1 + e^-t). The evaluation has 7 roundoffs of t, which the exponential turns into 7 |t|, 4 of
  // the exponential, and 2 operations. 1 % covers second orders.
  Bounded y(const Bounded& z) const {
    const double value = gelu(z.value), moved = steepest * z.error;
    const double t = exponent(std::abs(z.value) + z.error);
    return stored(value, moved + 1.01 * (7 * t + 6) * sum_roundoff_ * (std::abs(value) + moved));
  }

  // Returns d_z. The error is that of z times the largest curvature, plus that of the evaluation s
  // + x s (1 - s) t'. The roundoffs of s are as above with two more operations. Those of the second
  // term are three times that and 16 operations.
  Bounded d_z(const Bounded& z, double d_y) const {
    const double t = exponent(std::abs(z.value) + z.error);
    const double evaluation = 1.01 * sum_roundoff_ * ((7 * t + 8) + bend * (3 * (7 * t + 4) + 16));
    return stored(d_y * gelu_slope(z.value), std::abs(d_y) * (most_curved * z.error + evaluation));
  }

  // Returns a row of d_x = d_z W^T.
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

  std::int64_t tokens_, hidden_;
  const std::vector<double>& weight_;
  double sum_roundoff_, store_roundoff_, underflow_;
};

}  // namespace suite
