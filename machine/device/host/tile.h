#pragma once
// A small matrix product in registers, the inner loop of host/flash_attention.cpp. Written in the
// compiler's vectors, so that it is fast on any instruction set; an element's products are summed
// in ascending order of k whatever the set.

#include <cstdint>

namespace machine::host {

#if defined(__AVX512F__)
inline constexpr int vector_bytes = 64, most_vectors = 4;
#elif defined(__AVX__)
inline constexpr int vector_bytes = 32, most_vectors = 2;
#else
inline constexpr int vector_bytes = 16, most_vectors = 2;
#endif
inline constexpr int tile_rows = 6;  // with most_vectors, as many sums as there are registers for

template <class A>
inline constexpr int lanes = vector_bytes / static_cast<int>(sizeof(A));

template <class A>
using Vector [[gnu::vector_size(vector_bytes)]] = A;

// Element (row, k) of a lies at data[row * row_stride + k * k_stride].
template <class A>
struct Left {
  const A* data;
  std::int64_t row_stride, k_stride;
};

// c[row][0 ... vectors) = (adds ? c : 0) + sum over k < depth of left(row, k) * right[k].
template <int vectors, bool adds, class A>
inline void multiply_tile(Left<A> left, const A* right, std::int64_t right_stride,
                          std::int64_t depth, A* c, std::int64_t c_stride) {
  using V = Vector<A>;
  V sums[tile_rows][vectors];
#pragma GCC unroll 6
  for (int row = 0; row < tile_rows; ++row)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      if constexpr (adds) {
        __builtin_memcpy(&sums[row][v], c + row * c_stride + v * lanes<A>, sizeof(V));
      } else {
        sums[row][v] = V{};
      }
    }
  for (std::int64_t k = 0; k < depth; ++k) {
    V b[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
      __builtin_memcpy(&b[v], right + k * right_stride + v * lanes<A>, sizeof(V));
#pragma GCC unroll 6
    for (int row = 0; row < tile_rows; ++row) {
      const A a = left.data[row * left.row_stride + k * left.k_stride];
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sums[row][v] += a * b[v];
    }
  }
#pragma GCC unroll 6
  for (int row = 0; row < tile_rows; ++row)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
      __builtin_memcpy(c + row * c_stride + v * lanes<A>, &sums[row][v], sizeof(V));
}

// tile_rows rows of c, cols a multiple of lanes.
template <bool adds, class A>
inline void multiply_rows(Left<A> left, const A* right, std::int64_t right_stride,
                          std::int64_t depth, A* c, std::int64_t c_stride, std::int64_t cols) {
  std::int64_t col = 0;
  const auto step = [&]<int vectors>() {
    for (; col + vectors * lanes<A> <= cols; col += vectors * lanes<A>)
      multiply_tile<vectors, adds>(left, right + col, right_stride, depth, c + col, c_stride);
  };
  if constexpr (most_vectors >= 4) {
    step.template operator()<4>();
    step.template operator()<3>();
  }
  step.template operator()<2>();
  step.template operator()<1>();
}

}  // namespace machine::host
