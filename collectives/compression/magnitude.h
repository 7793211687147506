#pragma once
// Magnitudes of floats as integers, in the order of the numbers: infinity is above all numbers, and
// NaN above infinity. So a comparison never loses a NaN.

#include <algorithm>
#include <bit>
#include <cstdint>

namespace collectives {

inline constexpr std::uint32_t infinite_magnitude = 0x7f800000u;

inline std::uint32_t magnitude(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffffu;
}

inline std::uint32_t largest_magnitude(const float* values, std::int64_t count) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, magnitude(values[i]));
  return largest;
}

// Calls visit(i) for each element of at least this magnitude, in ascending order. Such elements are
// expected to be few: one vectorized comparison skips a run of elements, and the elements of the
// other runs are listed without unpredictable branches.
template <class Visit>
void for_each_at_least(const float* values, std::int64_t count, std::uint32_t least,
                       const Visit& visit) {
  constexpr std::int64_t run = 32;
  std::int64_t i = 0;
  for (; i + run <= count; i += run) {
    if (largest_magnitude(values + i, run) < least) continue;
    std::int8_t found[run];
    int size = 0;
    for (int j = 0; j < run; ++j) {
      found[size] = static_cast<std::int8_t>(j);
      size += magnitude(values[i + j]) >= least ? 1 : 0;
    }
    for (int j = 0; j < size; ++j) visit(i + found[j]);
  }
  for (; i < count; ++i)
    if (magnitude(values[i]) >= least) visit(i);
}

}  // namespace collectives
