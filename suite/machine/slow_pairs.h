#pragma once
// Which pairs of a link matrix stand out: whose time, of a small message or of a byte, lies far
// above that of the others of its kind, by median and MAD (harness/statistics.h). Pairs within a
// host and pairs between hosts are of different kinds, and are not held against each other.

#include <vector>

#include "harness/record.h"

namespace suite {

// In parts of the median: pairs nearer together than this count as equal, so that nothing less
// than 3.5 times as far off is ever slow.
inline constexpr double least_spread = 0.1;

// The worst first.
std::vector<harness::LinkMatrix::SlowPair> slow_pairs(const harness::LinkMatrix& matrix);

}  // namespace suite
