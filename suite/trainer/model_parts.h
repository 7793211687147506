#pragma once
// The parts of a GPT for ZeRO stages 2 and 3: the embedding, each block and the head. A part's
// values exist while the part is used, and its gradients are reduced when they are complete. The
// trainer's buffers and the expected costs (zero/cost/cost.h) use these parts.

#include <cstdint>
#include <vector>

#include "layers/models/gpt.h"
#include "suite/configuration/training_config.h"
#include "zero/cost/cost.h"
#include "zero/states/layout.h"

namespace suite {

class ModelChunks;
// Rows of the gradient plan, which has the rank's parameters in their order. The parts are in the
// order of forward. A table that embedding and head share is in both of these parts.
using ModelParts = std::vector<std::vector<int>>;
ModelParts model_parts(ModelChunks& model);

// ZeRO stages 0 and 1 bucket across parts. In ZeRO stages 2 and 3 a bucket belongs to one part.
zero::LayoutOptions layout_options(const TrainingConfig& config, const ModelParts& parts);

// Returns the order in which a micro-batch uses the parts at pp 1. ZeRO stages 0 and 1 do not need
// it.
zero::Usage model_usage(const TrainingConfig& config, const ModelParts& parts);

}  // namespace suite
