#pragma once
// The decisions of the routers in a training step.

#include <vector>

#include "layers/experts/routing.h"
#include "suite/configuration/training_config.h"

namespace suite {

// Records of a model with experts: by micro-batch, then by layer of the model. A layer without
// experts, or of another stage, has an empty record.
using StepRouting = std::vector<std::vector<layers::RoutingRecord>>;

// Joins the records of all ranks, in their order: those of tp and cp have different tokens of a
// micro-batch, in the order of layers/own_rows.h. Returns the records at degree 1.
StepRouting joined_routing(const TrainingConfig& config, const std::vector<StepRouting>& ranks);

}  // namespace suite
