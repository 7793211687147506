#pragma once
// Packs operands of the tiles in host/flash_attention.cpp from matrices of elements T, and unpacks
// results. `step` neighbours along k form an Element: one number of the accumulator's type, or a
// Pair of bfloat16. Elements beyond a matrix are zero.

#include <algorithm>
#include <cstdint>

#include "machine/device/gemm.h"
#include "machine/device/host/tile.h"
#include "machine/device/kernels/fields.h"

namespace machine::host {

using kernel::narrow;
using kernel::Value;
using kernel::widen;

template <class T>
inline constexpr bool in_pairs = multiplies_pairs&& std::is_same_v<T, Bfloat16>;
template <class T>
using Element = std::conditional_t<in_pairs<T>, Pair, Value<T>>;
template <class T>
inline constexpr std::int64_t step = in_pairs<T> ? 2 : 1;

constexpr std::int64_t round_up(std::int64_t value, std::int64_t to) {
  return (value + to - 1) / to * to;
}

inline Pair pair(Bfloat16 low, Bfloat16 high) {
  return {static_cast<std::uint32_t>(low.bits) | static_cast<std::uint32_t>(high.bits) << 16};
}

// One matrix of a batch.
template <class T>
struct Head {
  T* data;
  std::int64_t rows, cols, stride;

  Head(const Matrix& matrix, std::int64_t sequence, std::int64_t head)
      : data(static_cast<T*>(const_cast<void*>(static_cast<const void*>(matrix.data))) +
             matrix.offset(sequence, head)),
        rows(matrix.rows),
        cols(matrix.cols),
        stride(matrix.row_stride) {}
  T* row(std::int64_t index) const { return data + index * stride; }
};

// [count][cols / step]: rows from `begin` as a left operand, with k along the columns.
template <class T>
void pack_left(const Head<const T>& from, std::int64_t begin, std::int64_t count, Element<T>* to) {
  const std::int64_t depth = round_up(from.cols, step<T>) / step<T>;
  for (std::int64_t row = 0; row < count; ++row, to += depth) {
    if (begin + row >= from.rows) {
      std::fill_n(to, depth, Element<T>{});
      continue;
    }
    const T* in = from.row(begin + row);
    if constexpr (in_pairs<T>) {
      for (std::int64_t k = 0; k < from.cols / 2; ++k) to[k] = pair(in[2 * k], in[2 * k + 1]);
      if (from.cols % 2 != 0) to[depth - 1] = pair(in[from.cols - 1], Bfloat16());
    } else {
      for (std::int64_t k = 0; k < depth; ++k) to[k] = widen(in[k]);
    }
  }
}

// [count / step][width]: rows from `begin` as a right operand, with k along the rows.
template <class T>
void pack_right(const Head<const T>& from, std::int64_t begin, std::int64_t count,
                std::int64_t width, Element<T>* to) {
  for (std::int64_t row = 0; row < count; row += step<T>, to += width) {
    const T* in = from.row(begin + row);
    const std::int64_t left = from.rows - begin - row;
    const std::int64_t cols = left > 0 ? from.cols : 0;
    if constexpr (in_pairs<T>) {
      const T* next = in + (left > 1 ? from.stride : 0);
      const std::uint32_t keep = left > 1 ? 0xffffffffu : 0xffffu;
      for (std::int64_t c = 0; c < cols; ++c) to[c].bits = pair(in[c], next[c]).bits & keep;
    } else {
      for (std::int64_t c = 0; c < cols; ++c) to[c] = widen(in[c]);
    }
    std::fill(to + cols, to + width, Element<T>{});
  }
}

// [blocks][cols / step][block]: all rows as transposed right operands, with k along the columns.
// Goes through a small square, because strided reads and strided writes are slow.
template <std::int64_t block, class T>
void pack_transposed(const Head<const T>& from, Element<T>* to) {
  constexpr std::int64_t side = 16;
  static_assert(block % side == 0);
  const std::int64_t depth = round_up(from.cols, step<T>) / step<T>;
  const auto square = [&](std::int64_t row, std::int64_t k, Element<T>* out) {
    Element<T> part[side][side];
    const std::int64_t count = std::min(side, depth - k);
    for (std::int64_t i = 0; i < side; ++i) {
      const T* in = from.row(row + i) + k * step<T>;
      if (row + i >= from.rows) {
        std::fill_n(part[i], side, Element<T>{});
      } else if constexpr (in_pairs<T>) {
        const std::int64_t whole = std::min(count, from.cols / 2 - k);
        for (std::int64_t j = 0; j < whole; ++j) part[i][j] = pair(in[2 * j], in[2 * j + 1]);
        if (whole < count) part[i][whole] = pair(in[2 * whole], Bfloat16());
      } else {
        for (std::int64_t j = 0; j < count; ++j) part[i][j] = widen(in[j]);
      }
    }
    for (std::int64_t j = 0; j < count; ++j)
      for (std::int64_t i = 0; i < side; ++i) out[j * block + i] = part[i][j];
  };
  for (std::int64_t begin = 0; begin < from.rows; begin += block, to += depth * block)
    for (std::int64_t row = 0; row < block; row += side)
      for (std::int64_t k = 0; k < depth; k += side) square(begin + row, k, to + k * block + row);
}

// Sums of a tile [rows][cols] as a left operand, with k along the columns. Rows are `stride` apart.
// cols must be even.
template <class T>
Left<Element<T>> as_left(const Value<T>* sums, std::int64_t rows, std::int64_t cols,
                         std::int64_t stride, Element<T>* to) {
  if constexpr (in_pairs<T>) {
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t k = 0; k < cols / 2; ++k)
        to[row * cols / 2 + k] =
            pair(Bfloat16(sums[row * stride + 2 * k]), Bfloat16(sums[row * stride + 2 * k + 1]));
    return {to, cols / 2, 1};
  } else {
    return {sums, stride, 1};
  }
}

// Like as_left, but transposed: k is along the rows. rows must be even, cols may be odd.
template <class T>
Left<Element<T>> as_transposed_left(const Value<T>* sums, std::int64_t rows, std::int64_t cols,
                                    std::int64_t stride, Element<T>* to) {
  if constexpr (in_pairs<T>) {
    for (std::int64_t row = 0; row < rows; row += 2)
      for (std::int64_t c = 0; c < cols; ++c)
        to[row / 2 * cols + c] =
            pair(Bfloat16(sums[row * stride + c]), Bfloat16(sums[(row + 1) * stride + c]));
    return {to, 1, cols};
  } else {
    return {sums, 1, stride};
  }
}

template <class T>
void unpack(const Value<T>* from, std::int64_t width, Value<T> factor, const Head<T>& to,
            std::int64_t begin, std::int64_t count) {
  for (std::int64_t row = 0; row < count; ++row) {
    T* out = to.row(begin + row);
    for (std::int64_t c = 0; c < to.cols; ++c) out[c] = narrow<T>(from[row * width + c] * factor);
  }
}

}  // namespace machine::host
