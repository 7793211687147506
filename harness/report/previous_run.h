#pragma once
// The previous run on the same machine, and the changes since then.

#include <optional>
#include <string>

#include "harness/compare/compare.h"
#include "harness/record/run_json.h"

namespace harness {

struct PreviousRun {
  std::string name, date;    // of its folder; of its start
  RunComparison comparison;  // one launch per side, so no verdict of a time is certain
};

// Returns the latest complete run that is older than `run`, in the folder that contains
// `directory`, with the same hosts, hardware and ranks. Empty if there is no such run or no common
// case.
std::optional<PreviousRun> previous_run(const std::string& directory, const RunFile& run,
                                        const Fields& fields);

// HTML: changed verdicts, changed numbers, the largest changes of times.
std::string previous_run_html(const PreviousRun& previous);

}  // namespace harness
