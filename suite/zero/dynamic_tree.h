#pragma once
// The numbers of dynamic tree quantization (Dettmers 2016, arXiv:1511.04561; Dettmers et al. 2022,
// arXiv:2110.02861, section 1.3), read bit by bit from the definition of a pattern: after the sign,
// z zeros, a one, and the bits of a fraction. Its value is 10^-z times the middle of one of the
// equal intervals between 0.1 and 1. Of 8 bits unsigned, 7 zeros and a one is 1 in place of 10^-7;
// signed, the pattern of -0 is 1. Shares no code with machine/device/dynamic_codes.

#include <algorithm>
#include <cmath>
#include <vector>

namespace suite {

// Returns the 256 numbers in ascending order, which is that of the codes.
inline std::vector<double> dynamic_tree(bool with_sign) {
  const int bits = with_sign ? 7 : 8;  // after the sign
  std::vector<double> numbers{0, 1};
  for (int pattern = 1; pattern < 1 << bits; ++pattern) {
    int at = bits - 1, zeros = 0;
    for (; (pattern >> at & 1) == 0; --at) ++zeros;
    if (zeros == 7) continue;
    double low = 0.1, high = 1;
    while (at-- > 0) {  // each bit of the fraction halves the interval
      const double middle = (low + high) / 2;
      ((pattern >> at & 1) != 0 ? low : high) = middle;
    }
    const double number = (low + high) / 2 * std::pow(10, -zeros);
    numbers.push_back(number);
    if (with_sign) numbers.push_back(-number);
  }
  std::ranges::sort(numbers);
  return numbers;
}

// Returns the code of the number that is nearest to x.
inline int nearest_code(const std::vector<double>& numbers, double x) {
  const auto above = std::ranges::lower_bound(numbers, x);
  if (above == numbers.begin()) return 0;
  if (above == numbers.end()) return static_cast<int>(numbers.size()) - 1;
  const bool lower = x - *(above - 1) <= *above - x;
  return static_cast<int>(above - numbers.begin()) - (lower ? 1 : 0);
}

}  // namespace suite
