#include "layers/experts/grouped_gemm.h"

#include <cstddef>

namespace layers {

using machine::Matrix;

namespace {

Matrix rows_of(const Matrix& whole, std::int64_t first, std::int64_t count) {
  Matrix part = whole;
  part.data = static_cast<std::byte*>(whole.data) +
              static_cast<std::size_t>(first * whole.row_stride) * size_of(whole.dtype);
  part.rows = count;
  return part;
}

// Calls compute(group, first row, number of rows) for every group that has rows.
template <class Compute>
void each_group(std::span<const std::int64_t> rows, const Compute& compute) {
  std::int64_t first = 0;
  for (std::size_t group = 0; group < rows.size(); ++group) {
    if (rows[group] > 0) compute(group, first, rows[group]);
    first += rows[group];
  }
}

}  // namespace

void grouped_gemm(machine::Stream& stream, const Matrix& a, std::span<const std::int64_t> rows,
                  std::span<const Matrix> b, const Matrix& c) {
  each_group(rows, [&](std::size_t group, std::int64_t first, std::int64_t count) {
    gemm(stream, rows_of(a, first, count), b[group], rows_of(c, first, count));
  });
}

void grouped_gemm_of_rows(machine::Stream& stream, const Matrix& a, const Matrix& b,
                          std::span<const std::int64_t> rows, std::span<const Matrix> c) {
  each_group(rows, [&](std::size_t group, std::int64_t first, std::int64_t count) {
    if (c[group].data)
      gemm(stream, rows_of(a, first, count).transposed(), rows_of(b, first, count), c[group], 1, 1);
  });
}

}  // namespace layers
