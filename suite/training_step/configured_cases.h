#pragma once
// The cases of a unit with configuration files: --config and --megatron-arguments.
//
//   const ConfiguredCases run = configured_cases({.deepspeed_file = "ds_config.json"}, line.units,
//                                                line.request());
//   run.cases;                      // one for each combination of the flags' values
//   json(run.resolved);             // for the record
//
// An axis on the command line is one more source in addition to the files. It may set keys that the
// files do not set. An axis that contradicts the files is an error that shows both values.

#include <string>
#include <vector>

#include "harness/unit/unit.h"
#include "suite/configuration/resolve.h"

namespace suite {

struct ConfiguredCases {
  configuration::Resolved resolved;  // of the first case
  std::vector<harness::PlannedCase> cases;
};

// sources: without axes, model and GPUs, which come from the request's flags. The model is "small"
// if neither the sources nor the flags name one. Throws harness::UsageError for a flag that
// contradicts a file, for a unit that is not of the training step or several units, and for a
// configuration that no step supports.
ConfiguredCases configured_cases(const configuration::Sources& sources,
                                 const std::vector<std::string>& units,
                                 harness::PlanRequest request);

}  // namespace suite
