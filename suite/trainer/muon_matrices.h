#pragma once
// The parameters of a model that Muon orthogonalizes: the matrices of its layers. AdamW updates the
// embeddings, the output layer, biases and gains (Megatron-LM's is_embedding_or_output_parameter).

#include "layers/parameter.h"
#include "suite/configuration/training_config.h"
#include "zero/states/gradient_plan.h"

namespace suite {

// Sets `matrix` of the plan's rows; no change if the optimizer is not Muon. parameters: the plan's.
void name_matrices(zero::GradientPlan& plan, const layers::Parameters& parameters,
                   const TrainingConfig& config);

}  // namespace suite
