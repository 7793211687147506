#include "suite/reference/product_reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "harness/judge/numerics.h"
#include "machine/device/random.h"

namespace suite {

using machine::Dtype;

ProductRows product_rows(std::span<const std::int64_t> rows, StridedDoubles a, StridedDoubles b,
                         std::int64_t inner, std::int64_t cols) {
  ProductRows result;
  result.values.resize(rows.size() * static_cast<std::size_t>(cols));
  result.sizes.resize(result.values.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double* left = a.data + rows[i] * a.row_stride;
    double* values = result.values.data() + i * static_cast<std::size_t>(cols);
    double* sizes = result.sizes.data() + i * static_cast<std::size_t>(cols);
    const auto add = [&](std::int64_t k, std::int64_t j) {
      const double term = left[k * a.col_stride] * b.data[k * b.row_stride + j * b.col_stride];
      values[j] += term;
      sizes[j] += std::abs(term);
    };
    // Both branches add the same terms in the same order. The inner loops follow b's memory;
    // several columns at once, because one column's additions wait for each other.
    if (b.col_stride == 1) {
      for (std::int64_t k = 0; k < inner; ++k)
        for (std::int64_t j = 0; j < cols; ++j) add(k, j);
    } else {
      constexpr std::int64_t together = 8;
      std::int64_t j = 0;
      for (; j + together <= cols; j += together) {
        double sums[together] = {}, totals[together] = {};
        for (std::int64_t k = 0; k < inner; ++k)
          for (std::int64_t c = 0; c < together; ++c) {
            const double term =
                left[k * a.col_stride] * b.data[k * b.row_stride + (j + c) * b.col_stride];
            sums[c] += term;
            totals[c] += std::abs(term);
          }
        std::copy_n(sums, together, values + j);
        std::copy_n(totals, together, sizes + j);
      }
      for (; j < cols; ++j)
        for (std::int64_t k = 0; k < inner; ++k) add(k, j);
    }
  }
  return result;
}

std::vector<std::int64_t> rows_to_check(std::int64_t rows, std::int64_t work_per_row,
                                        std::uint64_t seed) {
  constexpr std::int64_t budget = std::int64_t{1} << 25, fewest = 4;
  const std::int64_t count =
      std::min(rows, std::max(fewest, budget / std::max<std::int64_t>(1, work_per_row)));
  std::vector<std::int64_t> chosen(static_cast<std::size_t>(count));
  if (count == rows) {
    std::iota(chosen.begin(), chosen.end(), 0);
    return chosen;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = rows * i / count, end = rows * (i + 1) / count;
    const double place = machine::uniform(seed, static_cast<std::uint64_t>(i));
    chosen[static_cast<std::size_t>(i)] =
        begin + static_cast<std::int64_t>(place * static_cast<double>(end - begin));
  }
  chosen.front() = 0;
  chosen.back() = rows - 1;
  return chosen;
}

double product_bound(std::int64_t terms, int later, Dtype dtype) {
  const Dtype accumulator = dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32;
  const double roundings = static_cast<double>(terms + later);
  const double summed = harness::gamma(roundings, unit_roundoff(accumulator));
  const double stored = dtype == accumulator ? 0 : harness::gamma(1 + later, unit_roundoff(dtype));
  const double reference = harness::gamma(roundings, unit_roundoff(Dtype::float64));
  return (1 + summed) * (1 + stored) - 1 + reference;
}

}  // namespace suite
