#pragma once
// The parts of a rank's GPT for ZeRO stages 2 and 3: the embedding, each block and the head, in the
// chunks of its pipeline stage. A part's values exist while the part is used, and its gradients are
// reduced when they are complete. The trainer's buffers and the expected costs (zero/cost/cost.h)
// use these parts.

#include <cstdint>
#include <string>
#include <vector>

#include "layers/models/gpt.h"
#include "pipeline/schedule.h"
#include "suite/configuration/training_config.h"
#include "zero/cost/cost.h"
#include "zero/states/layout.h"

namespace suite {

class ModelChunks;
struct ModelParts {
  // Rows of the gradient plan, which has the rank's parameters in their order. The parts are in the
  // order of forward. A table that embedding and head share is in both of these parts.
  std::vector<std::vector<int>> rows;
  struct Chunk {
    std::size_t begin = 0, end = 0;  // of its parts
    bool has_embedding = false, has_head = false;
  };
  std::vector<Chunk> chunks;  // by the number of the chunk
};
ModelParts model_parts(ModelChunks& model);

// Returns the names of the rank's parameters that are not trained (TrainingConfig::frozen). Throws
// std::invalid_argument if a norm's gain and bias are not frozen together, because one kernel
// computes both gradients.
std::vector<std::string> frozen_parameters(const TrainingConfig& config,
                                           const layers::Parameters& parameters);

// Returns whether a whole micro-batch is one pass (zero/stages/micro_batches.h): its backward
// follows its forward. Otherwise each forward and each backward of a chunk is a pass.
bool micro_batch_is_pass(const TrainingConfig& config);
// Returns the number of an action's pass.
int pass_number(const pipeline::Action& action);

// ZeRO stages 0 and 1 bucket across parts. In ZeRO stages 2 and 3 a bucket belongs to one part.
zero::LayoutOptions layout_options(const TrainingConfig& config, const ModelParts& parts);

// Returns the passes of a step on a stage with these actions, and the order in which each uses the
// parts. ZeRO stages 0 and 1 do not need it.
zero::Passes model_passes(const TrainingConfig& config, const ModelParts& parts,
                          const std::vector<pipeline::Action>& actions);

// Names the parameters that Muon, Adafactor or 8-bit AdamW updates by its rule: sets `matrix` of
// the plan's rows. Muon: the matrices of the layers, without embeddings and the output layer
// (Megatron-LM's is_embedding_or_output_parameter). Adafactor: all matrices. 8-bit AdamW: all
// parameters of at least min_8bit_size elements on this rank. parameters: the plan's.
void name_matrices(zero::GradientPlan& plan, const layers::Parameters& parameters,
                   const TrainingConfig& config);

}  // namespace suite
