#pragma once
// The axes of units, as `run UNIT --help` and `list UNIT` show them.

#include <string>
#include <vector>

#include "harness/unit/unit.h"

namespace suite {

// The options of an axis: "--tp,--tensor-model-parallel-size".
std::string axis_options(const std::string& axis);

// Lists for the help one line per axis: the values of the profile, the allowed values and the
// default; shortens long lists. Throws harness::UsageError for an unknown unit.
std::string axes_help(const std::vector<std::string>& units, const harness::PlanRequest& request);

// Lists a unit with its oracles.
std::string unit_summary(const harness::Family& unit);
// Lists its slices in a profile with their numbers of cases.
std::string unit_slices(const harness::Family& unit, harness::Profile profile);
// Lists its axes: all values of each profile, the allowed values and the default.
std::string unit_axes(const harness::Family& unit, const std::vector<harness::Profile>& profiles);

// A Markdown page of the units: a table, then a table of each unit's axes.
std::string units_page(const std::vector<const harness::Family*>& units);

}  // namespace suite
