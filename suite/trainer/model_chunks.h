#pragma once
// A model as a pipeline cuts it (pipeline/placement.h): its layers divided over the parts, and the
// parts that one rank holds, one for each chunk of its stage. A tied table lies with the embedding;
// a head on the same rank uses it there. Where the pipeline has two copies of the model, a stage
// and the one opposite hold the same, and all their parameters are tied.

#include <memory>
#include <string>
#include <vector>

#include "layers/models/gpt.h"
#include "layers/models/gpt_cost.h"
#include "pipeline/schedule.h"
#include "suite/configuration/training_config.h"

namespace suite {

// Of a valid configuration; they throw std::invalid_argument naming why there is none.
pipeline::Size pipeline_size(const TrainingConfig& config);
pipeline::Placement placement(const TrainingConfig& config);
pipeline::StageSchedules schedules(const TrainingConfig& config);

// How the layers are divided: DeepSpeed's words.
const std::vector<std::string>& partition_methods();
// First to last. "parameters": by their number, the embedding's and the head's with the layers
// beside them. "profile": by the time they took; uniform while config.pipeline.layer_costs has
// none. Throws std::invalid_argument for an unknown method, and where a part gets no layer.
std::vector<int> layers_of_parts(const TrainingConfig& config);

// Which part of the model a chunk is; and with it, what it costs.
layers::StageIndex chunk_index(const TrainingConfig& config, const pipeline::Placement& placement,
                               int stage, int chunk);
std::vector<layers::StageCase> chunk_cases(const TrainingConfig& config,
                                           const pipeline::Placement& placement, int stage);

// For each of the model's layers, then for the head, the first stage that holds it.
std::vector<int> stages_of_layers(const TrainingConfig& config,
                                  const pipeline::Placement& placement);

class ModelChunks {
 public:
  // As GptStage; takes no memory yet.
  ModelChunks(const TrainingConfig& config, const pipeline::Placement& placement, int stage,
              machine::Device& device, collectives::Communicator& tp,
              machine::Device* checkpoint_host = nullptr);

  layers::GptStage& operator[](int chunk) { return *chunks_[static_cast<std::size_t>(chunk)]; }
  // Of all chunks in the order of the model, each parameter once.
  const layers::Parameters& parameters() const { return parameters_; }
  std::vector<layers::Parameters> parts();  // GptStage::parts
  bool has_loss() const;

  void initialize(const layers::Initializer& initializer);
  void set_vocabulary(std::int64_t vocabulary);
  void set_loss_scale(double scale);
  void observe(const layers::StageObserver& observer);
  layers::Checkpoints::Moved checkpoints_moved() const;

 private:
  std::vector<std::unique_ptr<layers::GptStage>> chunks_;
  std::vector<layers::GptStage*> in_order_;  // of the model
  layers::Parameters parameters_;
};

}  // namespace suite
