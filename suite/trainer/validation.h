#pragma once
// Which training runs the Trainer can take.

#include "suite/configuration/training_config.h"

namespace suite {

// Throws std::invalid_argument naming the key, its value and what would fit.
void validate(const TrainingConfig& config);

}  // namespace suite
