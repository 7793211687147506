#pragma once
// Where a series changed its level.

#include <cstddef>
#include <span>
#include <vector>

namespace harness {

// The first indices of new levels, ascending. Pettitt's test (Pettitt 1979, doi:10.2307/2346729):
// of all places to cut, the one where the ranks on its two sides differ most; significant when at
// most this share of shuffles of the series has one that differs as much. Then the same within both
// parts. By ranks, so that no outlier counts for more than its place; shuffles are always the same
// ones. At 0.01 a dozen values can show a change, six on either side.
std::vector<std::size_t> change_points(std::span<const double> values, double level = 0.01);

}  // namespace harness
