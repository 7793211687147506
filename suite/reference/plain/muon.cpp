#include "suite/reference/plain/muon.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace suite::plain {
namespace {

// [rows, columns]
struct Matrix {
  std::size_t rows = 0, columns = 0;
  std::vector<double> values;
};

std::array<double, 3> coefficients(const Muon& muon, int step) {
  if (muon.coefficients == "simple") return {3.4445F, -4.7750F, 2.0315F};
  switch (step % 5) {
    case 0:
      return {4.0848F, -6.8946F, 2.9270F};
    case 1:
      return {3.9505F, -6.3029F, 2.6377F};
    case 2:
      return {3.7418F, -5.5913F, 2.3037F};
    case 3:
      return {2.8769F, -3.1427F, 1.2046F};
    default:
      return {2.8366F, -3.0525F, 1.2012F};
  }
}

// Returns `square` times x.
std::vector<double> times(const std::vector<double>& square, const Matrix& x) {
  std::vector<double> product(x.values.size());
  for (std::size_t i = 0; i < x.rows; ++i)
    for (std::size_t k = 0; k < x.rows; ++k)
      for (std::size_t j = 0; j < x.columns; ++j)
        product[i * x.columns + j] += square[i * x.rows + k] * x.values[k * x.columns + j];
  return product;
}

std::vector<double> with_its_transpose(const Matrix& x) {
  std::vector<double> square(x.rows * x.rows);
  for (std::size_t i = 0; i < x.rows; ++i)
    for (std::size_t k = 0; k < x.rows; ++k)
      for (std::size_t j = 0; j < x.columns; ++j)
        square[i * x.rows + k] += x.values[i * x.columns + j] * x.values[k * x.columns + j];
  return square;
}

void orthogonalize(const Muon& muon, Matrix& x) {
  double squares = 0;
  for (const double value : x.values) squares += value * value;
  if (squares == 0) return;
  for (double& value : x.values) value /= std::sqrt(squares);
  for (int step = 0; step < muon.steps; ++step) {
    const auto [a, b, c] = coefficients(muon, step);
    const std::vector<double> square = with_its_transpose(x), third = times(square, x),
                              fifth = times(square, {x.rows, x.columns, third});
    for (std::size_t i = 0; i < x.values.size(); ++i)
      x.values[i] = a * x.values[i] + b * third[i] + c * fifth[i];
  }
}

}  // namespace

double scale(const Muon& muon, double rows, double columns) {
  if (muon.scale == "spectral") return std::sqrt(std::max(rows, columns));
  const double quotient = rows / columns;
  return std::sqrt(muon.scale == "shape_scaling" ? std::max(1.0, quotient) : quotient);
}

double steepest_slope(const Muon& muon) {
  double steepest = 0;
  for (int i = 0; i <= 10000; ++i) {
    double s = i * 1e-4, slope = 1;
    for (int step = 0; step < muon.steps; ++step) {
      const auto [a, b, c] = coefficients(muon, step);
      slope *= a + 3 * b * s * s + 5 * c * s * s * s * s;
      s = a * s + b * s * s * s + c * s * s * s * s * s;
    }
    steepest = std::max(steepest, std::abs(slope));
  }
  return 1.01 * steepest;
}

void muon_step(const Muon& muon, double momentum, double learning_rate, double decay,
               const MatrixRows& rows, const std::vector<double>& gradient,
               std::vector<double>& average, std::vector<double>& value) {
  std::vector<double> direction(value.size());
  for (std::size_t i = 0; i < value.size(); ++i) {
    average[i] = momentum * average[i] + (1 - momentum) * gradient[i];
    direction[i] =
        muon.nesterov ? momentum * average[i] + (1 - momentum) * gradient[i] : average[i];
    value[i] -= learning_rate * decay * value[i];
  }
  const auto columns = static_cast<std::size_t>(rows.columns);
  const std::size_t all = value.size() / columns;
  std::vector<std::size_t> part_of;  // of each row of a period
  for (std::size_t part = 0; part < rows.parts.size(); ++part)
    part_of.insert(part_of.end(), static_cast<std::size_t>(rows.parts[part]), part);
  if (part_of.empty()) part_of = {0};
  for (std::size_t part = 0; part <= part_of.back(); ++part) {
    std::vector<std::size_t> mine;  // rows
    for (std::size_t row = 0; row < all; ++row)
      if (part_of[row % part_of.size()] == part) mine.push_back(row);
    Matrix x{mine.size(), columns, {}};
    for (const std::size_t row : mine)
      for (std::size_t j = 0; j < columns; ++j) x.values.push_back(direction[row * columns + j]);
    orthogonalize(muon, x);
    const double rate = learning_rate * muon.factor *
                        scale(muon, static_cast<double>(x.rows), static_cast<double>(x.columns));
    for (std::size_t i = 0; i < mine.size(); ++i)
      for (std::size_t j = 0; j < columns; ++j)
        value[mine[i] * columns + j] -= rate * x.values[i * columns + j];
  }
}

}  // namespace suite::plain
