#include "suite/reference/perceptron_reference.h"

#include <cmath>
#include <cstddef>

namespace suite {
namespace {

using Values = std::vector<double>;

// a [rows, inner] b [inner, cols]; with strides of rows and columns, so that a transposed matrix is
// read in place.
struct Strided {
  const Values& values;
  std::int64_t row, col;
  double at(std::int64_t i, std::int64_t j) const {
    return values[static_cast<std::size_t>(i * row + j * col)];
  }
};
Values product(std::int64_t rows, std::int64_t cols, std::int64_t inner, const Strided& a,
               const Strided& b) {
  Values result(static_cast<std::size_t>(rows * cols));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t k = 0; k < inner; ++k)
      for (std::int64_t j = 0; j < cols; ++j)
        result[static_cast<std::size_t>(i * cols + j)] += a.at(i, k) * b.at(k, j);
  return result;
}

void add_to_rows(Values& matrix, const Values& bias) {
  for (std::size_t i = 0; i < matrix.size(); ++i) matrix[i] += bias[i % bias.size()];
}

Values column_sums(const Values& matrix, std::int64_t cols) {
  Values sums(static_cast<std::size_t>(cols));
  for (std::size_t i = 0; i < matrix.size(); ++i) sums[i % sums.size()] += matrix[i];
  return sums;
}

double cubic(double x) { return std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }

}  // namespace

PerceptronReference perceptron_reference(const PerceptronValues& v,
                                         const std::function<void()>& progressed) {
  const std::int64_t n = v.tokens, h = v.hidden, f = v.ffn;
  PerceptronReference result;
  Values inner = product(n, f, h, {v.x, h, 1}, {v.weight1, f, 1});
  add_to_rows(inner, v.bias1);
  progressed();
  Values active = inner;
  for (double& x : active) x *= 0.5 * (1 + std::tanh(cubic(x)));
  result.y = product(n, h, f, {active, f, 1}, {v.weight2, h, 1});
  add_to_rows(result.y, v.bias2);
  progressed();
  Values d_inner = product(n, f, h, {v.d_y, h, 1}, {v.weight2, 1, h});
  for (std::size_t i = 0; i < d_inner.size(); ++i) {
    const double x = inner[i], t = std::tanh(cubic(x));
    d_inner[i] *=
        0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
  }
  progressed();
  result.d_x = product(n, h, f, {d_inner, f, 1}, {v.weight1, 1, f});
  progressed();
  result.d_weight1 = product(h, f, n, {v.x, 1, h}, {d_inner, f, 1});
  progressed();
  result.d_weight2 = product(f, h, n, {active, 1, f}, {v.d_y, h, 1});
  progressed();
  result.d_bias1 = column_sums(d_inner, f);
  result.d_bias2 = column_sums(v.d_y, h);
  return result;
}

}  // namespace suite
