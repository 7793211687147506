#pragma once
// The cases of a unit under configuration files: --config and --megatron-arguments.
//
//   const ConfiguredCases run = configured_cases({.deepspeed_file = "ds_config.json"}, line.units,
//                                                line.request());
//   run.cases;                      // for each combination of the flags' values, one
//   json(run.resolved);             // for the record
//
// An axis that is given on the command line is one source more, beside the files: it may say what
// they leave open, and an axis that contradicts them is an error that shows both values.

#include <string>
#include <vector>

#include "harness/unit/unit.h"
#include "suite/configuration/resolve.h"

namespace suite {

struct ConfiguredCases {
  configuration::Resolved resolved;  // of the first case
  std::vector<harness::PlannedCase> cases;
};

// sources: without axes, model and GPUs, which the request's flags give; the model is "small" where
// neither says it. Throws harness::UsageError: a flag and a file that disagree; another unit than
// those of the training step, or several; what no step does.
ConfiguredCases configured_cases(const configuration::Sources& sources,
                                 const std::vector<std::string>& units,
                                 harness::PlanRequest request);

}  // namespace suite
