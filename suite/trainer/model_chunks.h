#pragma once
// A model divided by a pipeline (pipeline/placement.h): its layers over the parts, and one rank's
// parts, one for each chunk of its stage. A tied table belongs to the embedding. A head on the same
// rank uses the embedding's table. If the pipeline has two copies of the model, a stage and the
// opposite stage hold the same parts, and all their parameters are tied.

#include <memory>
#include <string>
#include <vector>

#include "layers/models/gpt.h"
#include "layers/models/gpt_cost.h"
#include "layers/tensor_grids/grid_context.h"
#include "pipeline/schedule.h"
#include "suite/configuration/training_config.h"
#include "zero/states/layout.h"

namespace suite {

// Require a valid configuration. They throw std::invalid_argument with the reason if there is no
// pipeline.
pipeline::Size pipeline_size(const TrainingConfig& config);
pipeline::Placement placement(const TrainingConfig& config);
pipeline::StageSchedules schedules(const TrainingConfig& config);

// DeepSpeed's names of the ways to divide layers.
const std::vector<std::string>& partition_methods();
// Returns the number of layers of each part, first to last. "parameters": balances the number of
// parameters. The embedding and the head count with their neighbouring layers. "profile": balances
// the measured time; uniform if config.pipeline.layer_costs is empty. Throws std::invalid_argument
// for an unknown method, or if a part gets no layer.
std::vector<int> layers_of_parts(const TrainingConfig& config);

// Returns the part of the model that a chunk holds, and the case for its cost formulas.
layers::StageIndex chunk_index(const TrainingConfig& config, const pipeline::Placement& placement,
                               int stage, int chunk);
// The differences between ranks of a stage. cp: a2a may give ranks different numbers of heads, the
// first rank the most. expert: of the ranks that exchange tokens. tp: the first rank of a grid has
// the most parameters. compute_capability: of the GPU; 0: the host, or unknown. Emulated products
// in 8 bits need the most memory.
struct StageRank {
  int cp = 0, expert = 0, tp = 0, compute_capability = 0;
};
std::vector<layers::StageCase> chunk_cases(const TrainingConfig& config,
                                           const pipeline::Placement& placement, int stage,
                                           const StageRank& rank = {});

// Returns the degrees of the experts; 1 without experts.
layers::ExpertParallel expert_degrees(const TrainingConfig& config);

zero::Experts zero_experts(const TrainingConfig& config);

// Returns the first stage that holds each of the model's layers, then the one that holds the head.
std::vector<int> stages_of_layers(const TrainingConfig& config,
                                  const pipeline::Placement& placement);

class ModelChunks {
 public:
  // device, tp, checkpoint_host, cp, experts: as for GptStage. amax_group: Fp8Scheme's. grid: of a
  // model over a grid, and outlives this object; else null. Allocates no memory yet.
  ModelChunks(const TrainingConfig& config, const pipeline::Placement& placement, int stage,
              machine::Device& device, collectives::Communicator& tp,
              machine::Device* checkpoint_host = nullptr, const layers::ContextParallel& cp = {},
              const std::optional<layers::MoeCommunicators>& experts = {},
              collectives::Communicator* amax_group = nullptr,
              const layers::GridContext* grid = nullptr);

  layers::ModelStage& operator[](int chunk) { return *chunks_[static_cast<std::size_t>(chunk)]; }
  int size() const { return static_cast<int>(chunks_.size()); }
  const std::vector<int>& in_order() const { return order_; }  // chunks in the order of the model
  // Returns all chunks' parameters in the order of the model, each once.
  const layers::Parameters& parameters() const { return parameters_; }
  bool has_loss() const;

  void initialize(const layers::Initializer& initializer);
  void set_vocabulary(std::int64_t vocabulary);
  void set_loss_scale(double scale);
  void observe(const layers::StageObserver& observer);
  layers::Checkpoints::Moved checkpoints_moved() const;

 private:
  std::vector<std::unique_ptr<layers::ModelStage>> chunks_;
  std::vector<int> order_;
  std::vector<layers::ModelStage*> in_order_;
  layers::Parameters parameters_;
};

}  // namespace suite
