#pragma once
// What this program itself would hold: the model is declared, without memory, as one rank of the
// grid declares it, and the rooms' own formulas (zero/cost/cost.h, layers/models/gpt_memory.h,
// pipeline/execute.h) are added up, which the memory oracle holds to what is counted in a run.
// Left out of the buffers is what the collectives stage in, which the transport decides.

#include "suite/plan/memory_plan.h"

namespace suite::configuration {

// The first pipeline stage, which is the largest; not_held says why there are no numbers.
Held ours(const TrainingConfig& training, const Holding& holding);

}  // namespace suite::configuration
