#pragma once
// One model trained by the strategies of the literature on four ranks: memory, bytes by group, time
// and bubble side by side. Every strategy is a case of gpt_step, whose oracles compare them with
// the formulas. All take the same sequences, so their losses are the same.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/record/record.h"

namespace suite::recipes {

using Axes = std::vector<std::pair<std::string, std::string>>;

struct Strategy {
  std::string_view name, source;
  Axes axes;  // in addition to the defaults of gpt_step
};
const std::vector<Strategy>& strategies();

// Returns the name of the case of gpt_step. common: axes of all strategies, such as the model.
std::string case_name(const Strategy& strategy, const Axes& common);

inline constexpr const char* strategies_file = "strategies.json";  // in the run's folder
// Returns its text, from which the figure takes the names.
std::string strategies_json(const Axes& common);

// Returns the table of the run's records. A strategy without a record, or without a measurement,
// has the reason in its row.
std::string strategies_table(const std::vector<harness::Record>& records, const Axes& common);

}  // namespace suite::recipes
