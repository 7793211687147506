#include "machine/device/host/double_gemm.h"

#include <algorithm>
#include <vector>

#include "machine/device/host/tile.h"

namespace machine::host {
namespace {

constexpr int vectors_of_tile = 2;
constexpr std::int64_t rows_of_tile = tile_rows, cols_of_tile = vectors_of_tile * lanes<double>;
// A panel of b (at most 20 KiB) stays in the L1 cache, a block of a (120 KiB) in the L2 cache.
constexpr std::int64_t depth = 160, block_rows = 16 * rows_of_tile, block_cols = 64 * cols_of_tile;

struct Doubles {
  const double* data;
  std::int64_t row_stride, col_stride;
  const double* at(std::int64_t row, std::int64_t col) const {
    return data + row * row_stride + col * col_stride;
  }
};

Doubles doubles(const Matrix& x, std::int64_t offset) {
  return {static_cast<const double*>(x.data) + offset, x.row_stride, x.col_stride};
}

// Packs rows x deep of x into tiles of `tile` rows, column by column, with zeros below the last
// row.
void pack(const Doubles& x, std::int64_t rows, std::int64_t deep, std::int64_t tile, double* to) {
  for (std::int64_t first = 0; first < rows; first += tile, to += tile * deep) {
    const std::int64_t count = std::min(tile, rows - first);
    if (count < tile) std::fill_n(to, tile * deep, 0.0);
    if (x.col_stride == 1) {
      for (std::int64_t i = 0; i < count; ++i)
        for (std::int64_t k = 0; k < deep; ++k) to[k * tile + i] = *x.at(first + i, k);
    } else {
      for (std::int64_t k = 0; k < deep; ++k)
        for (std::int64_t i = 0; i < count; ++i) to[k * tile + i] = *x.at(first + i, k);
    }
  }
}

// c[rows, cols] = alpha * left * right + beta * c, for at most one tile.
void update_tile(const double* left, const double* right, std::int64_t deep, double alpha,
                 double beta, double* c, std::int64_t row_stride, std::int64_t rows,
                 std::int64_t cols) {
  double products[rows_of_tile * cols_of_tile];
  multiply_tile<tile_rows, vectors_of_tile, false>(Left<double>{left, 1, rows_of_tile},
                                                   Right<double>{right, cols_of_tile}, deep,
                                                   products, cols_of_tile);
  for (std::int64_t i = 0; i < rows; ++i) {
    const double* const values = products + i * cols_of_tile;
    double* const out = c + i * row_stride;
    if (beta == 0) {  // the previous c is unused and may be NaN
      for (std::int64_t j = 0; j < cols; ++j) out[j] = alpha * values[j];
    } else {
      for (std::int64_t j = 0; j < cols; ++j) out[j] = alpha * values[j] + beta * out[j];
    }
  }
}

// Returns the rows of a block: every thread gets equally many, so that none waits for another.
std::int64_t even_block(std::int64_t rows, int threads) {
  const auto up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const std::int64_t turns = up(rows, threads * block_rows);
  return up(up(rows, threads * turns), rows_of_tile) * rows_of_tile;
}

void multiply_one(const Doubles& a, const Doubles& b, double* c, const Matrix& shape,
                  std::int64_t inner, double alpha, double beta, int threads) {
  const std::int64_t deepest = std::min(depth, inner), block = even_block(shape.rows, threads);
  std::vector<double> right(deepest * std::min(block_cols, shape.cols + cols_of_tile));
  const Doubles columns{b.data, b.col_stride, b.row_stride};  // the columns of b as rows
  for (std::int64_t k = 0; k < inner; k += depth) {
    const std::int64_t deep = std::min(depth, inner - k);
    const double before = k == 0 ? beta : 1;
    for (std::int64_t j = 0; j < shape.cols; j += block_cols) {
      const std::int64_t wide = std::min(block_cols, shape.cols - j);
#pragma omp parallel num_threads(threads) if (threads > 1)
      {
#pragma omp for schedule(static)
        for (std::int64_t col = 0; col < wide; col += cols_of_tile)
          pack({columns.at(j + col, k), columns.row_stride, columns.col_stride},
               std::min(cols_of_tile, wide - col), deep, cols_of_tile, right.data() + col * deep);
        std::vector<double> left(deepest * block);
#pragma omp for schedule(dynamic)
        for (std::int64_t i = 0; i < shape.rows; i += block) {
          const std::int64_t high = std::min(block, shape.rows - i);
          pack({a.at(i, k), a.row_stride, a.col_stride}, high, deep, rows_of_tile, left.data());
          for (std::int64_t col = 0; col < wide; col += cols_of_tile)
            for (std::int64_t row = 0; row < high; row += rows_of_tile)
              update_tile(left.data() + row * deep, right.data() + col * deep, deep, alpha, before,
                          c + (i + row) * shape.row_stride + j + col, shape.row_stride,
                          std::min(rows_of_tile, high - row), std::min(cols_of_tile, wide - col));
        }
      }
    }
  }
}

}  // namespace

void multiply_doubles(const Matrix& a, const Matrix& b, const Matrix& c, double alpha, double beta,
                      int threads) {
  const std::int64_t batches = c.batch[0] * c.batch[1];
  const auto one = [&](std::int64_t batch, int team) {
    const auto offset = [&](const Matrix& x) {
      return x.offset(batch / c.batch[1], batch % c.batch[1]);
    };
    multiply_one(doubles(a, offset(a)), doubles(b, offset(b)),
                 static_cast<double*>(c.data) + offset(c), c, a.cols, alpha, beta, team);
  };
  if (batches < 2 * threads) {
    for (std::int64_t batch = 0; batch < batches; ++batch) one(batch, threads);
  } else {
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (std::int64_t batch = 0; batch < batches; ++batch) one(batch, 1);
  }
}

}  // namespace machine::host
