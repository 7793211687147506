#pragma once
// A resolved configuration as the training step takes it: what gpt_step and training_speed run with
// --config and --megatron-arguments, and what the planner counts as `ours`.

#include "harness/unit/sweep.h"
#include "suite/configuration/resolve.h"
#include "suite/trainer/trainer.h"

namespace suite::configuration {

// What no training step here does, though the configuration asks for it; empty: all is done.
std::string why_no_step(const Training& training);

// Of a training that has a step and whose numbers are all known. model: as trainer.h has it where
// the configuration has no shape. Throws std::invalid_argument as TrainingConfig::validate, and
// for numbers beyond what a step counts to.
TrainingConfig step_config(const Training& training);

// The axes' values that it says.
harness::AxisFlags step_flags(const TrainingConfig& config);

// What `run` does with configuration files: sets suite::configured and adds their axis values to
// `axes`, from which it takes ranks and, where the files have no shape, the model ("small" where
// they do not say either). units: those asked for. Throws harness::UsageError: a flag and a file
// that disagree, with both values; another unit; what no step does.
Resolved use_configuration(Sources sources, const std::vector<std::string>& units,
                           harness::AxisFlags& axes);

}  // namespace suite::configuration
