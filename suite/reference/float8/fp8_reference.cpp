#include "suite/reference/float8/fp8_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace suite {
namespace {

double rounded(double value) { return static_cast<double>(static_cast<float>(value)); }
double largest_number(bool e5m2) { return e5m2 ? 57344 : 448; }

// Codes without sign, in the order of their values.
std::vector<double> numbers(bool e5m2) {
  std::vector<double> all;
  for (int code = 0; code < 128 && fp8_value(e5m2, code) <= largest_number(e5m2); ++code)
    all.push_back(fp8_value(e5m2, code));
  return all;
}

double scale_of(double amax, double largest, double margin, double otherwise) {
  if (!(amax > 0) || std::isinf(amax)) return otherwise;
  const double quotient = rounded(rounded(largest / amax) / margin);
  return std::min(quotient, static_cast<double>(std::numeric_limits<float>::max()));
}

double largest_of(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

}  // namespace

double fp8_value(bool e5m2, int code) {
  const int sign = code >= 128 ? -1 : 1, magnitude = code % 128;
  const int steps = e5m2 ? 4 : 8;  // between two powers of two
  const int exponent = magnitude / steps, fraction = magnitude % steps;
  if (e5m2 ? exponent == 31 : magnitude == 127) return std::nan("");
  const double unit = std::exp2(e5m2 ? -14 : -6);  // the least normal number
  if (exponent == 0) return sign * unit * fraction / steps;
  return sign * unit * std::exp2(exponent - 1) * (1 + static_cast<double>(fraction) / steps);
}

int fp8_nearest(bool e5m2, double value) {
  static const std::vector<double> tables[] = {numbers(false), numbers(true)};
  const std::vector<double>& table = tables[e5m2 ? 1 : 0];
  const double size = std::abs(value);
  const auto above = std::lower_bound(table.begin(), table.end(), size);
  auto code = static_cast<int>(above - table.begin());
  if (above == table.end()) {
    code = static_cast<int>(table.size()) - 1;
  } else if (code > 0) {
    const double to_above = *above - size,
                 to_below = size - table[static_cast<std::size_t>(code) - 1];
    if (to_below < to_above || (to_below == to_above && code % 2 == 1)) --code;
  }
  return std::signbit(value) ? code + 128 : code;
}

Fp8Matrix fp8_matrix(const std::vector<double>& values, std::int64_t cols,
                     const Fp8Coding& coding) {
  const auto rows = static_cast<std::int64_t>(values.size()) / cols;
  const std::int64_t height = coding.block_rows > 0 ? coding.block_rows : rows,
                     width = coding.block_cols > 0 ? coding.block_cols : cols;
  Fp8Matrix result;
  result.codes.resize(values.size());
  result.values.resize(values.size());
  for (std::int64_t top = 0; top < rows; top += height)
    for (std::int64_t left = 0; left < cols; left += width) {
      std::vector<std::size_t> elements;
      double amax = 0;
      for (std::int64_t row = top; row < std::min(rows, top + height); ++row)
        for (std::int64_t col = left; col < std::min(cols, left + width); ++col) {
          elements.push_back(static_cast<std::size_t>(row * cols + col));
          amax = std::max(amax, std::abs(values[elements.back()]));
        }
      double scale = coding.scale, inverse = 0;
      if (coding.powers) {
        const int exponent =
            amax > 0 ? std::max(-127, std::ilogb(amax) - (coding.e5m2 ? 15 : 8)) : -127;
        result.inverse.push_back(exponent + 127);
        inverse = std::exp2(exponent);
        scale = 1 / inverse;
      } else {
        if (scale == 0) scale = scale_of(amax, largest_number(coding.e5m2), 1, 1);
        inverse = rounded(1 / scale);
        result.inverse.push_back(inverse);
      }
      for (const std::size_t i : elements) {
        const int code = fp8_nearest(coding.e5m2, rounded(values[i] * scale));
        result.codes[i] = code;
        result.values[i] = fp8_value(coding.e5m2, code) * inverse;
      }
    }
  return result;
}

Fp8DelayedScale::Fp8DelayedScale(bool e5m2, int margin, int history, bool of_largest)
    : largest_(largest_number(e5m2)),
      divisor_(std::exp2(margin)),
      history_(static_cast<std::size_t>(history)),
      of_largest_(of_largest) {}

void Fp8DelayedScale::end_pass(const std::vector<double>& whole) {
  amaxes_.push_back(largest_of(whole));
  const std::size_t count = of_largest_ ? std::min(history_, amaxes_.size()) : 1;
  const double amax =
      *std::max_element(amaxes_.end() - static_cast<std::ptrdiff_t>(count), amaxes_.end());
  scale_ = scale_of(amax, largest_, divisor_, scale_);
}

}  // namespace suite
