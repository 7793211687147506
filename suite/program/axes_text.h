#pragma once
// The axes of units, as `run UNIT --help` and `list UNIT` show them.

#include <string>
#include <vector>

#include "harness/unit/unit.h"

namespace suite {

// The options of an axis: "--tp,--tensor-model-parallel-size".
std::string axis_options(const std::string& axis);

// For the help: a line each with the values of the profile, the allowed ones and the default, long
// lists cut. Throws harness::UsageError on an unknown unit.
std::string axes_help(const std::vector<std::string>& units, const harness::PlanRequest& request);

// A unit with its oracles.
std::string unit_summary(const harness::Family& unit);
// Its slices of a profile with the number of their cases.
std::string unit_slices(const harness::Family& unit, harness::Profile profile);
// Its axes: all values of each profile, the allowed ones and the default.
std::string unit_axes(const harness::Family& unit, const std::vector<harness::Profile>& profiles);

}  // namespace suite
