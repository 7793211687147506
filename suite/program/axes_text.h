#pragma once
// The axes of units, as `run UNIT --help` and `list UNIT` show them.

#include <string>
#include <vector>

#include "harness/unit/unit.h"

namespace suite {

// Returns the options of an axis: "--tp,--tensor-model-parallel-size".
std::string axis_options(const std::string& axis);
// Returns them for readers: "--tp, --tensor-model-parallel-size".
std::string axis_names(const std::string& axis);

// Return the words that completion offers. axis_values: values of the named units, or of all units
// if none is named.
std::vector<std::string> unit_names();
std::vector<std::string> profile_names();
std::vector<std::string> axis_values(const std::vector<std::string>& units,
                                     const std::string& axis);

// Lists for the help one line per axis: the values of the profile, the allowed values and the
// default; shortens long lists. Throws harness::UsageError for an unknown unit.
std::string axes_help(const std::vector<std::string>& units, const harness::PlanRequest& request);

}  // namespace suite
