#pragma once
// Whether the files of the command line fit a step, before any rank starts.

#include "harness/unit/unit.h"
#include "suite/trainer/trainer.h"

namespace suite {

// Throws FileError: --data is too short for a sequence or is not as its format says; --load does
// not hold this model's weights; --save of a model that GPT-2's names do not fit.
void check_step_files(const TrainingConfig& config, const harness::Files& files);

}  // namespace suite
