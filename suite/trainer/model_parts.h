#pragma once
// A GPT as ZeRO's stages 2 and 3 see it: parts (the embedding, each block, the head) whose values
// are there while they are used, and whose gradients go when they are complete. The trainer lays
// its buffers out by them; what a step must cost is counted by them (zero/cost/cost.h).

#include <cstdint>
#include <vector>

#include "layers/models/gpt.h"
#include "suite/configuration/training_config.h"
#include "zero/cost/cost.h"
#include "zero/states/layout.h"

namespace suite {

class ModelChunks;
// Rows of the gradient plan, which has the rank's parameters in their order; parts in the order of
// forward. The row of a table that embedding and head share is in both.
using ModelParts = std::vector<std::vector<int>>;
ModelParts model_parts(ModelChunks& model);

// Stages 0 and 1 have one bucket of everything, the others no bucket of two parts.
zero::LayoutOptions layout_options(const TrainingConfig& config, const ModelParts& parts);

// How a micro-batch goes through the model where pp is 1. Stages 0 and 1, which may have pipelines,
// do not ask.
zero::Usage model_usage(const TrainingConfig& config, const ModelParts& parts);

}  // namespace suite
