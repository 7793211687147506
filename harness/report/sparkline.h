#pragma once
// A small drawing of a unit's rate, or time, over the size of its cases.

#include <string>
#include <vector>

#include "harness/record/record.h"

namespace harness {

// Returns an <svg> element of the series with the best case, or of the longest series. Empty if no
// series has two sizes. A series has equal axes, except those that are sizes.
std::string sparkline(const std::vector<const Record*>& records, const Record* best);

}  // namespace harness
