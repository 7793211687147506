#pragma once
// The numbers with which collectives are checked. A rank's input element and the reduction of all
// ranks' elements are pure functions of the index. So a kernel regenerates the right value where
// the result is, and no second buffer and no copy of the result is needed.
//
// Inputs are small integers: exact in every order and dtype up to 64 ranks. In 8-bit floating
// dtypes only two ranks add to an element. The right result is computed in double from the inputs
// of all ranks. It shares no code with the kernels that reduce.

#include <cstdint>
#include <type_traits>

#include "machine/device/dtype.h"
#include "machine/device/reduction.h"

namespace machine {

struct Pattern {
  Dtype dtype = Dtype::float32;
  bool reduces = false;  // the operation joins the elements of all ranks
  Reduction reduction = Reduction::sum;
  int ranks = 1;
};

// The source of `count` elements of an output, from `begin` on: elements of a rank's input, or the
// reduction of all ranks' inputs, from `first` on.
struct PatternPart {
  static constexpr int all_ranks = -1;
  int rank = all_ranks;
  std::int64_t first = 0, begin = 0, count = 0;
};

// The errors of an output. All bits zero: no error. Errors can be joined in any order.
struct PatternErrors {
  std::uint64_t count;      // of wrong elements
  std::uint64_t not_first;  // the complement of the index of the first one
  std::uint64_t last;       // the index of the last one
  double largest;           // infinity for NaN

  SHARDMARK_BOTH void add(const PatternErrors& other) {
    count += other.count;
    not_first = not_first < other.not_first ? other.not_first : not_first;
    last = last < other.last ? other.last : last;
    largest = largest < other.largest ? other.largest : largest;
  }
  std::int64_t first() const { return static_cast<std::int64_t>(~not_first); }
};
inline constexpr std::int64_t pattern_error_words = sizeof(PatternErrors) / sizeof(std::uint64_t);
static_assert(sizeof(PatternErrors) == 32 && std::is_trivially_copyable_v<PatternErrors>);

SHARDMARK_BOTH constexpr bool has_sign(Dtype dtype) {
  return dtype != Dtype::uint8 && dtype != Dtype::uint32 && dtype != Dtype::uint64;
}

// Returns element `index` of the rank's input. For products: factors that keep the result small.
SHARDMARK_BOTH constexpr double pattern_value(const Pattern& pattern, int rank,
                                              std::int64_t index) {
  const std::uint64_t mixed =
      static_cast<std::uint64_t>(index * 131 + std::int64_t{rank} * 7919 + 1) * 0x9e3779b97f4a7c15u;
  const auto random = static_cast<int>((mixed >> 40) % 7);
  if (pattern.reduces && pattern.reduction == Reduction::prod) {
    // One factor is 3, one is 2, the others are 1 or -1. So a missing or doubled factor shows.
    const auto turn = static_cast<int>(index % pattern.ranks);
    if (turn == rank) return 3;
    if ((turn + 1) % pattern.ranks == rank) return 2;
    return has_sign(pattern.dtype) && random < 3 ? -1 : 1;
  }
  // 8 bits hold integers up to 16 or 8, so only two ranks add to an element.
  const bool adds = pattern.reduction == Reduction::sum || pattern.reduction == Reduction::avg;
  const bool is_float8 = pattern.dtype == Dtype::float8_e4m3 || pattern.dtype == Dtype::float8_e5m2;
  if (pattern.reduces && adds && pattern.ranks > 2 && is_float8 &&
      (index + pattern.ranks - rank) % pattern.ranks > 1)
    return 0;
  return has_sign(pattern.dtype) ? random - 3 : random;
}

// Returns the integer part, never -0. GCC 12 turns the two conversions into trunc(), which keeps
// the sign of a zero.
SHARDMARK_BOTH constexpr double integer_part(double value) {
  if (-1 < value && value < 1) return 0;
  return static_cast<double>(static_cast<std::int64_t>(value));
}

// Returns the nearest value of the type; integers modulo 2^bits.
template <class T>
SHARDMARK_BOTH constexpr double in_dtype(double value) {
  if constexpr (is_narrow<T>)
    return static_cast<double>(static_cast<float>(T(static_cast<float>(value))));
  else if constexpr (std::is_integral_v<T>)
    return static_cast<double>(static_cast<T>(static_cast<std::int64_t>(value)));
  else
    return static_cast<double>(static_cast<T>(value));
}

// Joins two values in double; avg adds.
SHARDMARK_BOTH constexpr double join_exactly(Reduction reduction, double a, double b) {
  if (reduction == Reduction::prod) return a * b;
  if (reduction == Reduction::max) return a < b ? b : a;
  if (reduction == Reduction::min) return b < a ? b : a;
  return a + b;
}

// Returns the reduction of element `index` of all ranks' inputs, as a value of T.
template <class T>
SHARDMARK_BOTH constexpr double reduced_value(const Pattern& pattern, std::int64_t index) {
  double result = pattern_value(pattern, 0, index);
  for (int rank = 1; rank < pattern.ranks; ++rank)
    result = join_exactly(pattern.reduction, result, pattern_value(pattern, rank, index));
  result = in_dtype<T>(result);
  if (pattern.reduction != Reduction::avg) return result;
  result /= pattern.ranks;
  if constexpr (std::is_integral_v<T>)
    return integer_part(result);
  else
    return in_dtype<T>(result);
}

// Returns the right value of element i of the part.
template <class T>
SHARDMARK_BOTH constexpr double right_value(const Pattern& pattern, const PatternPart& part,
                                            std::int64_t i) {
  return part.rank == PatternPart::all_ranks ? reduced_value<T>(pattern, part.first + i)
                                             : pattern_value(pattern, part.rank, part.first + i);
}

}  // namespace machine
