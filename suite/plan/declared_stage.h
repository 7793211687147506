#pragma once
// One rank of a pipeline stage, declared without memory: the parameters, ZeRO's buckets and the
// passes of a step. plan sums the bytes that it holds, predict those that it sends. Both use the
// formulas of zero/cost/cost.h, with which the oracles compare a run.

#include "pipeline/schedule.h"
#include "suite/configuration/training_config.h"
#include "suite/trainer/model_parts.h"
#include "zero/cost/cost.h"

namespace suite::configuration {

struct DeclaredStage {
  pipeline::StageSchedules schedules;
  zero::GradientPlan plan;
  ModelParts parts;
  zero::Layout layout;
  zero::Selected selected;  // by gradient_compression, if gradients are normal
  zero::Passes passes;
};
// config: valid (trainer/validation.h). most_micro_batches: the schedules and passes have at most
// this number. Throws std::invalid_argument for a pattern of frozen parameters that is not valid.
DeclaredStage declare_stage(const TrainingConfig& config, int stage, int most_micro_batches);

}  // namespace suite::configuration
