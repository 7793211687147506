// A norm in two parts of the columns is the norm of whole rows, on every device.

#include "machine/device/split_norm.h"

#include <cmath>
#include <vector>

#include "machine/testing/on_device.h"

namespace machine {
namespace {

constexpr double epsilon = 1e-5;

// The columns of one rank.
struct Part {
  Tensor x, gain, bias, d_y, y, d_x, mean, rstd, sums, slope_sums;
};

class SplitNormParts : public OnDevice {
 protected:
  Part part(std::int64_t rows, std::int64_t cols) {
    return {random({rows, cols}),     random({cols}),        random({cols}),
            random({rows, cols}),     empty({rows, cols}),   empty({rows, cols}),
            empty({rows}, wide()),    empty({rows}, wide()), empty({2 * rows}, wide()),
            empty({2 * rows}, wide())};
  }
  // Adds up the sums of both parts, as an all-reduce does.
  void add_up(const Tensor& one, const Tensor& other) {
    kernels().add(one, other, one);
    kernels().cast(one, other);
  }
  // Joins the rows of a tensor of both parts.
  static std::vector<Values> rows_of(const std::vector<Part>& parts, Tensor Part::*which) {
    std::vector<Values> rows(static_cast<std::size_t>(parts.front().x.rows()));
    for (const Part& one : parts) {
      const Tensor& tensor = one.*which;
      const Values values = to_doubles(tensor);
      const auto cols = static_cast<std::ptrdiff_t>(one.x.cols());
      for (std::size_t row = 0; row < rows.size(); ++row) {
        // A vector of columns is the same in every row.
        const auto begin =
            values.begin() +
            (tensor.shape().rank() == 1 ? 0 : static_cast<std::ptrdiff_t>(row) * cols);
        rows[row].insert(rows[row].end(), begin, begin + cols);
      }
    }
    return rows;
  }
};

TEST_P(SplitNormParts, AreTheNormOfWholeRows) {
  const auto norm = make_split_norm(*device_);
  // Rows from few elements to more than a GPU block processes at once.
  for (const auto& [rows, left, right] :
       {std::tuple(1, 1, 2), {5, 3, 8}, {37, 70, 41}, {3, 4099, 130}}) {
    const std::int64_t columns = left + right;
    const std::vector<Part> parts{part(rows, left), part(rows, right)};
    for (const Part& one : parts) norm->sums(one.x, one.sums);
    add_up(parts[0].sums, parts[1].sums);
    for (const Part& one : parts) {
      norm->normalize(one.x, one.sums, columns, one.gain, one.bias, epsilon, one.y, one.mean,
                      one.rstd);
      norm->slope_sums(one.x, one.gain, one.mean, one.rstd, one.d_y, one.slope_sums);
    }
    add_up(parts[0].slope_sums, parts[1].slope_sums);
    for (const Part& one : parts)
      norm->slopes(one.x, one.gain, one.mean, one.rstd, one.d_y, one.slope_sums, columns, one.d_x);

    const auto x = rows_of(parts, &Part::x), gain = rows_of(parts, &Part::gain),
               bias = rows_of(parts, &Part::bias), d_y = rows_of(parts, &Part::d_y),
               y = rows_of(parts, &Part::y), d_x = rows_of(parts, &Part::d_x);
    const Values means = to_doubles(parts[1].mean), rstds = to_doubles(parts[1].rstd);
    const auto n = static_cast<double>(columns);
    for (std::size_t row = 0; row < x.size(); ++row) {
      double mean = 0, variance = 0, g_mean = 0, gn_mean = 0;
      const auto each = [&](auto use) {
        for (std::size_t c = 0; c < x[row].size(); ++c) use(c, d_y[row][c] * gain[row][c]);
      };
      each([&](std::size_t c, double) { mean += x[row][c] / n; });
      each([&](std::size_t c, double) { variance += std::pow(x[row][c] - mean, 2) / n; });
      const double rstd = 1 / std::sqrt(variance + epsilon);
      each([&](std::size_t c, double g) {
        g_mean += g / n;
        gn_mean += g * (x[row][c] - mean) * rstd / n;
      });
      // The variance has the error of squares of up to 4, so that of rstd grows with its cube.
      const double of_sums = 16 * (8 + std::sqrt(n)) * sum_roundoff(dtype()),
                   relative = of_sums * rstd * rstd;
      EXPECT_NEAR(means[row], mean, of_sums);
      EXPECT_NEAR(rstds[row], rstd, relative * rstd);
      each([&](std::size_t c, double g) {
        const double normal = (x[row][c] - mean) * rstd;
        const double want_y = normal * gain[row][c] + bias[row][c],
                     want_d_x = rstd * (g - g_mean - normal * gn_mean);
        EXPECT_NEAR(y[row][c], want_y, 16 * relative * (1 + rstd) + 4 * rounding(dtype(), want_y));
        EXPECT_NEAR(d_x[row][c], want_d_x,
                    64 * relative * rstd * (1 + rstd) + 4 * rounding(dtype(), want_d_x));
      });
    }
  }
}

TEST_P(SplitNormParts, MismatchesAreRejected) {
  const auto norm = make_split_norm(*device_);
  const Part one = part(4, 6);
  EXPECT_THROW(norm->sums(one.x, one.mean), std::logic_error);
  EXPECT_THROW(norm->normalize(one.x, one.sums, 12, one.gain, random({5}), epsilon, one.y, one.mean,
                               one.rstd),
               std::logic_error);
}

SHARDMARK_ON_EVERY_DEVICE(SplitNormParts);

}  // namespace
}  // namespace machine
