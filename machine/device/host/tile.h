#pragma once
// A small matrix product in registers, the inner loop of host/flash_attention.cpp. It uses the
// compiler's vectors, so it is fast on any instruction set. On every set, an element's products are
// summed in ascending order of k.
//
// Operands have the accumulator's type A. If the processor multiplies Pairs of bfloat16, operands
// are Pairs, and k counts pairs.

#include <cstdint>

#if defined(__AVX512BF16__) && defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace machine::host {

#if defined(__AVX512F__)
inline constexpr int vector_bytes = 64, most_vectors = 4;
#elif defined(__AVX__)
inline constexpr int vector_bytes = 32, most_vectors = 2;
#else
inline constexpr int vector_bytes = 16, most_vectors = 2;
#endif
inline constexpr int tile_rows = 6;  // with most_vectors, the sums fill the registers

// Two neighbours along k, the first in the low half.
struct Pair {
  std::uint32_t bits;
};
#if defined(__AVX512BF16__) && defined(__AVX512F__)
inline constexpr bool multiplies_pairs = true;
#else
inline constexpr bool multiplies_pairs = false;
#endif

template <class A>
inline constexpr int lanes = vector_bytes / static_cast<int>(sizeof(A));

template <class A>
using Vector [[gnu::vector_size(vector_bytes)]] = A;

template <class A>
inline Vector<A> load(const A* from) {
  Vector<A> value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}
template <class A, class V>
inline void store(A* to, V value) {
  static_assert(sizeof value == vector_bytes);
  __builtin_memcpy(to, &value, sizeof value);
}

template <class A, class V>
inline void add_product(V& sum, A a, V b) {
  sum += a * b;
}
inline Vector<std::uint32_t> load(const Pair* from) { return load(&from->bits); }
#if defined(__AVX512BF16__) && defined(__AVX512F__)
inline void add_product(Vector<float>& sum, Pair a, Vector<std::uint32_t> b) {
  const __m512i left = _mm512_set1_epi32(static_cast<int>(a.bits));
  __m512i right;
  __builtin_memcpy(&right, &b, sizeof right);
  const __m512 total =
      _mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(left),
                       reinterpret_cast<__m512bh>(right));
  __builtin_memcpy(&sum, &total, sizeof sum);
}
#endif

// Element (row, k) of an operand is at data[row * row_stride + k * k_stride].
template <class E>
struct Left {
  const E* data;
  std::int64_t row_stride, k_stride;
};

// Element (k, vector) of a right operand whose columns are neighbours.
template <class E>
struct Right {
  const E* data;
  std::int64_t stride;
  template <class A>
  const E* at(std::int64_t k, int vector) const {
    return data + k * stride + vector * lanes<A>;
  }
};
// A right operand whose vectors are anywhere.
template <class E, int vectors>
struct Gathered {
  const E* data[vectors];
  std::int64_t stride;
  template <class A>
  const E* at(std::int64_t k, int vector) const {
    return data[vector] + k * stride;
  }
};

// c[row][0 ... vectors) = (adds ? c : 0) + sum over k < depth of left(row, k) * right[k].
template <int rows, int vectors, bool adds, class E, class R, class A>
[[gnu::always_inline]] inline void multiply_tile(Left<E> left, const R& right, std::int64_t depth,
                                                 A* c, std::int64_t c_stride) {
  Vector<A> sums[rows][vectors];
#pragma GCC unroll 6
  for (int row = 0; row < rows; ++row)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
      sums[row][v] = adds ? load(c + row * c_stride + v * lanes<A>) : Vector<A>{};
  for (std::int64_t k = 0; k < depth; ++k) {
    decltype(load(left.data)) b[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) b[v] = load(right.template at<A>(k, v));
#pragma GCC unroll 6
    for (int row = 0; row < rows; ++row) {
      const E a = left.data[row * left.row_stride + k * left.k_stride];
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) add_product(sums[row][v], a, b[v]);
    }
  }
#pragma GCC unroll 6
  for (int row = 0; row < rows; ++row)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) store(c + row * c_stride + v * lanes<A>, sums[row][v]);
}

// Calls visit<vectors>(first) for tiles of all vectors, the widest first.
template <class Visit>
[[gnu::always_inline]] inline void each_tile(int all, const Visit& visit) {
  int first = 0;
  const auto step = [&]<int vectors>() {
    for (; first + vectors <= all; first += vectors) visit.template operator()<vectors>(first);
  };
  if constexpr (most_vectors >= 4) {
    step.template operator()<4>();
    step.template operator()<3>();
  }
  step.template operator()<2>();
  step.template operator()<1>();
}

// Calls visit<rows>() for 2, 4 or 6 rows.
template <class Visit>
[[gnu::always_inline]] inline void with_rows(std::int64_t rows, const Visit& visit) {
  static_assert(tile_rows == 6);
  if (rows == 6) return visit.template operator()<6>();
  if (rows == 4) return visit.template operator()<4>();
  visit.template operator()<2>();
}

// Computes 2, 4 or 6 rows of c. cols must be a multiple of lanes.
template <bool adds, class E, class A>
[[gnu::always_inline]] inline void multiply_rows(std::int64_t rows, Left<E> left, const E* right,
                                                 std::int64_t right_stride, std::int64_t depth,
                                                 A* c, std::int64_t c_stride, std::int64_t cols) {
  with_rows(
      rows, [&]<int count>() __attribute__((always_inline)) {
        each_tile(
            static_cast<int>(cols / lanes<A>), [&]<int vectors>(
                                                   int first) __attribute__((always_inline)) {
              const std::int64_t col = first * lanes<A>;
              multiply_tile<count, vectors, adds>(left, Right<E>{right + col, right_stride}, depth,
                                                  c + col, c_stride);
            });
      });
}

// Multiplies like the function above, but with no previous sums and a right operand in `count`
// vectors.
template <class E, class A>
inline void multiply_gathered(std::int64_t rows, Left<E> left, const E* const* right,
                              std::int64_t right_stride, std::int64_t depth, A* c,
                              std::int64_t c_stride, int count) {
  with_rows(rows, [&]<int number>() {
    each_tile(
        count, [&]<int vectors>(int first) __attribute__((always_inline)) {
          Gathered<E, vectors> some{{}, right_stride};
          for (int v = 0; v < vectors; ++v) some.data[v] = right[first + v];
          multiply_tile<number, vectors, false>(left, some, depth, c + first * lanes<A>, c_stride);
        });
  });
}

}  // namespace machine::host
