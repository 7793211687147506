#pragma once
// A second reading of the codes of ZeRO++ for tests, in plain loops: a block of 64 elements has the
// scale of its largest magnitude over levels, rounded up to 8 bits.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace zero::testing {

// Returns the values that the codes of `values` decode to. levels: 127 or 7.
inline std::vector<double> coded(std::vector<double> values, int levels) {
  const auto in_float = [](double value) { return static_cast<double>(static_cast<float>(value)); };
  for (std::size_t begin = 0; begin < values.size(); begin += 64) {
    double largest = 0;
    for (std::size_t i = begin; i < begin + 64; ++i)
      largest = std::max(largest, std::abs(values[i]));
    if (largest == 0) continue;
    const double step = in_float(largest / levels);
    const double unit = std::ldexp(1, std::ilogb(step) - 7), scale = std::ceil(step / unit) * unit;
    const double by = in_float(1 / scale);
    for (std::size_t i = begin; i < begin + 64; ++i)
      values[i] = std::nearbyint(in_float(values[i] * by)) * scale;
  }
  return values;
}

}  // namespace zero::testing
