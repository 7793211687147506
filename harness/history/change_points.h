#pragma once
// Changes of the level of a series.

#include <cstddef>
#include <span>
#include <vector>

namespace harness {

// Returns the first indices of new levels, ascending, by Pettitt's test (Pettitt 1979,
// doi:10.2307/2346729): the split whose two sides differ most in rank. It is significant if at most
// this fraction of shuffles of the series has a split with such a difference. Repeats within both
// parts. Ranks limit the weight of outliers. The shuffles are always the same. At 0.01 a dozen
// values can show a change, six on either side.
std::vector<std::size_t> change_points(std::span<const double> values, double level = 0.01);

}  // namespace harness
