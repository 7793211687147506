#include "suite/reference/float8/fp8_linear_reference.h"

#include <algorithm>
#include <cmath>

namespace suite {
namespace {

using Values = std::vector<double>;

struct Strided {
  const Values& values;
  std::int64_t row, col;  // strides
  double at(std::int64_t i, std::int64_t j) const {
    return values[static_cast<std::size_t>(i * row + j * col)];
  }
};

// terms += a [rows, inner] b [inner, cols]. The inner loop is over neighbours, in a copy of b.
void add_product(Fp8Terms& terms, std::int64_t rows, std::int64_t inner, const Strided& a,
                 const Strided& b) {
  const std::int64_t cols = terms.cols;
  Values right(static_cast<std::size_t>(inner * cols));
  for (std::int64_t k = 0; k < inner; ++k)
    for (std::int64_t j = 0; j < cols; ++j)
      right[static_cast<std::size_t>(k * cols + j)] = b.at(k, j);
  Values sums(static_cast<std::size_t>(cols)), sizes(sums);
  for (std::int64_t i = 0; i < rows; ++i) {
    std::fill(sums.begin(), sums.end(), 0.0);
    std::fill(sizes.begin(), sizes.end(), 0.0);
    for (std::int64_t k = 0; k < inner; ++k) {
      const double left = a.at(i, k);
      const double* const line = right.data() + k * cols;
      for (std::size_t j = 0; j < sums.size(); ++j) {
        const double term = left * line[j];
        sums[j] += term;
        sizes[j] += std::abs(term);
      }
    }
    const auto first = static_cast<std::size_t>(i * cols);
    for (std::size_t j = 0; j < sums.size(); ++j) {
      terms.values[first + j] += sums[j];
      terms.sizes[first + j] += sizes[j];
    }
  }
}

Fp8Terms zeros(std::int64_t rows, std::int64_t cols) {
  const auto size = static_cast<std::size_t>(rows * cols);
  return {cols, Values(size), Values(size)};
}

}  // namespace

Fp8LinearReference::Fp8LinearReference(const Fp8LinearQuestion& q)
    : question_(q),
      of_input_(false, q.margin, q.history, q.of_largest),
      of_weight_(of_input_),
      of_gradient_(q.e5m2_gradients, q.margin, q.history, q.of_largest),
      operands_(static_cast<std::size_t>(q.ranks)),
      d_weight_(zeros(q.out, q.in)),
      d_bias_(zeros(1, q.out)) {}

void Fp8LinearReference::start(Values weight, Values bias) {
  weight_ = std::move(weight);
  bias_ = std::move(bias);
}

Values Fp8LinearReference::encode(const char* operand, const Values& whole, std::int64_t cols,
                                  Fp8Cut cut, Kind kind, bool along_rows) {
  const auto rows = static_cast<std::int64_t>(whole.size()) / cols;
  Fp8Coding coding{.e5m2 = kind == Kind::gradient && question_.e5m2_gradients};
  if (question_.recipe == "delayed")
    coding.scale = (kind == Kind::input    ? of_input_
                    : kind == Kind::weight ? of_weight_
                                           : of_gradient_)
                       .scale();
  if (question_.recipe == "blockwise" && kind == Kind::weight) {
    coding.block_rows = coding.block_cols = 128;
  } else if (question_.recipe == "blockwise" || question_.recipe == "mxfp8") {
    coding.powers = question_.recipe == "mxfp8";
    const std::int64_t block = coding.powers ? 32 : 128;
    coding.block_rows = along_rows ? block : 1;
    coding.block_cols = along_rows ? 1 : block;
  }
  Values decoded(whole.size());
  for (int rank = 0; rank < question_.ranks; ++rank) {
    const std::int64_t part_rows = rows / (cut == Fp8Cut::rows ? question_.ranks : 1),
                       part_cols = cols / (cut == Fp8Cut::columns ? question_.ranks : 1);
    const std::int64_t top = cut == Fp8Cut::rows ? rank * part_rows : 0,
                       left = cut == Fp8Cut::columns ? rank * part_cols : 0;
    const auto place = [&](std::int64_t row, std::int64_t col) {
      return static_cast<std::size_t>((top + row) * cols + left + col);
    };
    if (cut == Fp8Cut::whole && rank > 0) {  // the same on every rank
      operands_[static_cast<std::size_t>(rank)].push_back(operands_[0].back());
      continue;
    }
    Values part;
    for (std::int64_t row = 0; row < part_rows; ++row)
      for (std::int64_t col = 0; col < part_cols; ++col) part.push_back(whole[place(row, col)]);
    Fp8Matrix codes = fp8_matrix(part, part_cols, coding);
    for (std::int64_t row = 0; row < part_rows; ++row)
      for (std::int64_t col = 0; col < part_cols; ++col)
        decoded[place(row, col)] = codes.values[static_cast<std::size_t>(row * part_cols + col)];
    operands_[static_cast<std::size_t>(rank)].emplace_back(operand, std::move(codes));
  }
  return decoded;
}

void Fp8LinearReference::pass(const Values& x, const Values& d_y) {
  const std::int64_t n = question_.tokens, in = question_.in, out = question_.out;
  for (auto& of_rank : operands_) of_rank.clear();
  const Values x_forward = encode("forward x", x, in, cut_of_x(), Kind::input, false),
               w_forward = encode("forward W", weight_, in, cut_of_weight(), Kind::weight, false),
               d_y_input =
                   encode("input_gradient d_y", d_y, out, cut_of_d_y(), Kind::gradient, false),
               w_input =
                   encode("input_gradient W", weight_, in, cut_of_weight(), Kind::weight, true),
               x_weight = encode("weight_gradient x", x, in, cut_of_x(), Kind::input, true),
               d_y_weight =
                   encode("weight_gradient d_y", d_y, out, cut_of_d_y(), Kind::gradient, true);
  of_input_.end_pass(x);
  of_weight_.end_pass(weight_);
  of_gradient_.end_pass(d_y);
  y_ = zeros(n, out);
  add_product(y_, n, in, {x_forward, in, 1}, {w_forward, 1, in});
  for (std::size_t i = 0; i < y_.values.size(); ++i) {
    const double bias = bias_[i % static_cast<std::size_t>(out)];
    y_.values[i] += bias;
    y_.sizes[i] += std::abs(bias);
  }
  d_x_ = zeros(n, in);
  add_product(d_x_, n, out, {d_y_input, out, 1}, {w_input, in, 1});
  add_product(d_weight_, out, n, {d_y_weight, 1, out}, {x_weight, in, 1});
  const Values ones(static_cast<std::size_t>(n), 1);
  add_product(d_bias_, 1, n, {ones, n, 1}, {d_y, out, 1});
}

}  // namespace suite
