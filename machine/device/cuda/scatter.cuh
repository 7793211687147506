#pragma once
// Adds rows to the rows of a table that their tokens name. The warp of a token's first row adds all
// rows of that token, in ascending order, to some of the columns. Reading all tokens for this costs
// less than sorting them, unless there are many rows.

#include <cstdint>

#include "machine/device/cuda/lanes.cuh"
#include "machine/device/cuda/ptx.cuh"

namespace machine::cuda {

constexpr int columns_of_lane = 8, columns_of_warp = columns_of_lane * warp_size;

// True, in every lane, if a row before this one has the token.
__device__ inline bool is_earlier(const std::int32_t* tokens, std::int64_t row,
                                  std::int32_t token) {
  constexpr int at_once = 4;
  for (std::int64_t base = 0; base < row; base += at_once * warp_size) {
    bool seen = false;
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      const std::int64_t i = base + k * warp_size + WarpLanes::lane();
      seen = seen || (i < row && tokens[i] == token);
    }
    if (__any_sync(every_lane, seen)) return true;
  }
  return false;
}

// The sums stay in registers, and several rows are read before the first of them is added. If each
// row were added to the table in memory, it would wait for the row before. With two blocks of an SM
// a thread has registers enough for all that it reads.
template <class Body>
__global__ void __launch_bounds__(block_size, 2)
    scatter_kernel(const std::int32_t* tokens, std::int64_t rows, Body body) {
  using Sum = typename Body::Sum;
  constexpr int rows_at_once = 4;
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * warps_per_block + threadIdx.x / warp_size;
  if (row >= rows || !body.owns(row)) return;
  const std::int32_t token = tokens[row];
  if (is_earlier(tokens, row, token)) return;

  const int lane = WarpLanes::lane();
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * columns_of_warp + lane;
  const auto each_column = [&](const auto& work) {
#pragma unroll
    for (int k = 0; k < columns_of_lane; ++k)
      if (first + k * warp_size < body.cols) work(k, first + k * warp_size);
  };
  Sum sums[columns_of_lane];
  each_column([&](int k, std::int64_t col) { sums[k] = body.sum(row, col); });
  for (std::int64_t base = row; base < rows; base += warp_size) {
    const bool same = base + lane < rows && tokens[base + lane] == token;
    unsigned left = __ballot_sync(every_lane, same);
    while (left != 0) {
      Sum terms[rows_at_once][columns_of_lane];
      bool present[rows_at_once];
#pragma unroll
      for (int r = 0; r < rows_at_once; ++r) {
        present[r] = left != 0;
        const std::int64_t next = base + __ffs(static_cast<int>(left)) - 1;
        left &= left - 1;
        if (present[r])
          each_column([&](int k, std::int64_t col) { terms[r][k] = body.term(next, col); });
      }
#pragma unroll
      for (int r = 0; r < rows_at_once; ++r)
        if (present[r])
          each_column(
              [&](int k, std::int64_t /*col*/) { sums[k] = Body::add(sums[k], terms[r][k]); });
    }
  }
  each_column([&](int k, std::int64_t col) { body.set(row, col, sums[k]); });
}

}  // namespace machine::cuda
