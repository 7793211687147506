#pragma once
// The training configurations that the Trainer supports.

#include "suite/configuration/training_config.h"

namespace suite {

// Throws std::invalid_argument with the key, its value and the values that would be valid.
void validate(const TrainingConfig& config);

}  // namespace suite
