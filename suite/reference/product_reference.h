#pragma once
// Matrix products in double by plain loops, and bounds on the error of a product in another dtype.
//
//   const auto rows = rows_to_check(m, n * k, seed);
//   const ProductRows want = product_rows(rows, {x, k, 1}, {weight, 1, k}, k, n);   // x Wᵀ
//   error of element i <= product_bound(k, 0, dtype) * want.sizes[i]

#include <cstdint>
#include <span>
#include <vector>

#include "machine/device/dtype.h"

namespace suite {

struct StridedDoubles {
  const double* data = nullptr;
  std::int64_t row_stride = 0, col_stride = 1;
};

// The requested rows, concatenated.
struct ProductRows {
  std::vector<double> values;  // sum of terms
  std::vector<double> sizes;   // sum of their absolute values
};

// a [*, inner] b [inner, cols]
ProductRows product_rows(std::span<const std::int64_t> rows, StridedDoubles a, StridedDoubles b,
                         std::int64_t inner, std::int64_t cols);

// Returns all rows of a result if their cost is at most about 2^25 multiplications. Otherwise
// returns as many rows as this cost allows: the first, the last, and a random one from each of
// equal parts between them. work_per_row: multiplications.
std::vector<std::int64_t> rows_to_check(std::int64_t rows, std::int64_t work_per_row,
                                        std::uint64_t seed);

// Returns the largest error of a sum of `terms` products, relative to the sum of their absolute
// values. The sum is computed in dtype's accumulator (float; double for double) in any order.
// `later` additions follow, each rounded to dtype.
//
// A term is rounded once as a product, at most terms - 1 times as part of a sum, and once in each
// later addition: gamma(terms + later) of the accumulator (Higham 2002, section 3.1; fused
// operations round less). A dtype narrower than its accumulator rounds again when the sum is stored
// and after each later addition. The reference has the same number of roundings, in double.
double product_bound(std::int64_t terms, int later, machine::Dtype dtype);

}  // namespace suite
