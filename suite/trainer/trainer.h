#pragma once
// The whole training step: data, pipeline of tensor-parallel stages, gradient reduction, optimizer.
// This is where layers, zero and pipeline meet; none of them knows the others.
//
//   Trainer trainer(world, group, device, config, corpus);
//   trainer.step();                       // forward_backward, reduce, update
//   trainer.mean_loss();
//
// The degrees change where a number is computed, never which: initial values, data and the order of
// micro-batches depend on the seed and on global indices only.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "layers/models/gpt.h"
#include "machine/world/grid.h"
#include "machine/world/world.h"
#include "pipeline/execute.h"
#include "suite/files/corpus.h"
#include "suite/trainer/learning_rate.h"
#include "suite/trainer/model_chunks.h"
#include "suite/trainer/model_parts.h"
#include "zero/optimizers/loss_scale.h"
#include "zero/stages/step.h"
#include "zero/states/flat_states.h"

namespace suite {

struct TrainingConfig {
  layers::GptConfig model;
  machine::Degrees degrees;
  machine::Dtype dtype = machine::Dtype::float32;
  machine::Transport transport = machine::Transport::shared_memory;
  int micro_batch_size = 1;   // sequences
  int global_batch_size = 8;  // sequences of a step, over all of dp
  std::string schedule = "1f1b";
  int virtual_stages = 1;                      // chunks of a stage, as the schedule needs them
  std::string partition_method = "uniform";    // of layers over the parts (model_chunks.h)
  std::vector<std::int64_t> layer_costs = {};  // of "profile", measured (layer_costs.h)
  int zero_stage = 1;  // 2 and 3: without pipelines, one micro-batch in flight
  layers::ActivationOptions activations{};
  zero::StepOptions options{};
  zero::LossScaleOptions loss_scale = zero::usual_options(zero::LossScaling::constant);
  std::optional<LearningRate> learning_rate = {};  // none: the optimizer's own, constant
  std::int64_t reduce_bucket_size = 500'000'000;   // elements (zero/states/layout.h)
  // Stage 3: parameters of so many elements or fewer are whole on every rank
  // (zero/states/layout.h).
  std::int64_t stage3_param_persistence_threshold = 100'000;
  // Only a part of each sequence counts for the loss (counted_tokens): another in every step, and
  // of some micro-batches and ranks nothing.
  bool uneven_tokens = false;
  std::uint64_t seed = 1234;
  int vocabulary = 0;   // tokens there are: the model's rows beyond are padding; 0: all rows
  std::string weights;  // a file of initial values (gpt2_weights.h); empty: random ones of the seed

  int micro_batches() const { return global_batch_size / (degrees.dp * micro_batch_size); }
  std::int64_t tokens() const { return std::int64_t{global_batch_size} * model.sequence; }
  pipeline::Size pipeline_size() const { return {degrees.pp, micro_batches(), virtual_stages}; }
  // Of a valid configuration; throws std::invalid_argument naming why there is none.
  pipeline::Placement placement() const;
  pipeline::StageSchedules schedules() const;
  // Throws std::invalid_argument naming the key, its value and what would fit.
  void validate() const;

 private:
  void validate_pipeline() const;
};

// The models by name: "tiny", "small", GPT-2's as Radford et al. 2019 have them, "llama_tiny" in
// Llama's shape and "llama2_7b" as Touvron et al. 2023 (arXiv:2307.09288) have it. Vocabularies are
// not padded. Throws std::invalid_argument naming the known.
layers::GptConfig named_model(const std::string& name);
const std::vector<std::string>& model_names();

// The table's rows as Megatron-LM pads them (--make-vocab-size-divisible-by 128): to a multiple of
// 128 * tp. A vocabulary that is a multiple of 128 stays as it is where tp divides it, so that the
// small models are the same for every tp.
int padded_vocabulary(int vocabulary, int tp);

// With uneven tokens: so many of a sequence's tokens, its first, count in a step of `sequences`. A
// pure function of global indices. At least one in the step; in every fourth, none of its second
// half.
int counted_tokens(std::uint64_t seed, std::int64_t step, int index, int sequences, int tokens);

// Sets model and vocabulary. sequence_length: "model", or a number of tokens. Throws
// std::invalid_argument naming what is wrong.
void set_model(TrainingConfig& config, const std::string& name, const std::string& sequence_length);

class Trainer {
 public:
  // Collective over group, whose size is the product of the degrees.
  Trainer(machine::World& world, const machine::Group& group, machine::Device& device,
          TrainingConfig config, const Corpus& corpus);

  void forward_backward();
  zero::Step& optimizer_step() { return *step_; }
  const zero::Step& optimizer_step() const { return *step_; }
  zero::StepResult update();  // and the loss scale by its outcome
  zero::StepResult step() {
    forward_backward();
    step_->reduce();
    return update();
  }

  // Calls work while every parameter's value is there: stage 3 gathers them for it. Collective over
  // dp.
  template <class Work>
  void with_values(const Work& work) {
    step_->before_use(parameters_);
    work();
    step_->after_use(parameters_);
  }
  std::uint64_t hash_of_values();  // of all parameters. Collective over dp

  // Writes the values as gpt2_weights.h says: of a padded table the rows that were loaded.
  // Collective over the group.
  void save(const std::string& path);

  // Of the last forward_backward, over all tokens that counted. Collective over the group.
  double mean_loss();

  const TrainingConfig& config() const { return config_; }
  const machine::Grid& grid() const { return grid_; }
  layers::Parameters& parameters() { return parameters_; }
  double loss_scale() const { return scale_.scale(); }
  const zero::GradientPlan& plan() const { return plan_; }
  const zero::FlatStates& states() const { return *states_; }
  const ModelParts& parts() const { return parts_; }
  // Where checkpoints are with cpu_checkpointing, memory of their own; else null. And what went
  // there and back so far.
  const machine::Device* checkpoint_host() const { return checkpoint_host_.get(); }
  layers::Checkpoints::Moved checkpoints_moved() const { return chunks_->checkpoints_moved(); }
  const pipeline::StageSchedules& schedules() const { return schedules_; }
  const pipeline::Timeline& timeline() const { return timeline_; }
  std::int64_t steps() const { return steps_; }

  struct Group {
    std::string name;
    std::unique_ptr<collectives::Communicator> communicator;  // null where this rank is outside
    std::unique_ptr<machine::Link> gradients;  // of pp, where gradients need a link of their own
    std::vector<machine::Link*> links() const;
  };
  const std::vector<Group>& groups() const { return groups_; }
  collectives::Communicator* communicator(std::string_view name) const;

  // Bytes of tokens, targets and, where the model ends, losses, and of what counts uneven tokens,
  // counted as buffers.
  static std::size_t data_bytes(const TrainingConfig& config, bool has_loss);

 private:
  void connect_groups();
  void connect_executor();
  void connect_step();
  bool tells_of_gradients() const;
  void begin_gradients();
  void scale_loss();
  std::int64_t first_sequence() const;  // of this rank's, in this step
  void draw_data();
  void count_tokens();

  machine::World& world_;
  machine::Group group_;
  machine::Device& device_;
  TrainingConfig config_;
  const Corpus& corpus_;
  machine::Grid grid_;
  std::vector<Group> groups_;
  std::unique_ptr<machine::Device> checkpoint_host_;
  pipeline::StageSchedules schedules_;
  std::unique_ptr<ModelChunks> chunks_;
  layers::Parameters parameters_;
  int vocabulary_ = 0;  // rows of the table that are no padding
  ModelParts parts_;
  zero::GradientPlan plan_;
  std::unique_ptr<zero::FlatStates> states_;
  std::unique_ptr<zero::Step> step_;
  zero::LossScale scale_;
  std::unique_ptr<pipeline::Executor> executor_;
  pipeline::Stage work_;
  std::ptrdiff_t with_gradients_ = 0;  // backward passes of this step that have begun
  machine::Memory tokens_;             // int32: all micro-batches' tokens, then their targets
  std::vector<std::int32_t> drawn_;
  machine::Tensor losses_;   // one double a micro-batch, where the model ends
  machine::Tensor counted_;  // with uneven tokens: a double, of this rank's dp group
  pipeline::Timeline timeline_;
  std::int64_t steps_ = 0, updates_ = 0;  // updates: the steps that were not skipped
};

}  // namespace suite
