#pragma once
// The rate of a product of groups of rows, compared with one product of the same operations.
//
// A group reads, packs and, on most hosts in 16 bits, widens its own weights, so its cost falls
// with its rows: one widening takes as long as the products of some 7 rows at 150 GFLOP/s.

#include <cstdint>
#include <span>
#include <vector>

#include "machine/device/gemm.h"
#include "machine/device/tensor.h"

namespace suite {

// x [sum of rows, k], weights_i [k, n]. Returns the time of one product of all rows with the first
// matrix over that of the grouped product: the median of 15 rounds, in which both alternate.
double grouped_gemm_over_gemm(const machine::Tensor& x, std::span<const std::int64_t> rows,
                              std::span<const machine::Matrix> weights);

}  // namespace suite
