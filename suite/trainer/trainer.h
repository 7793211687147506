#pragma once
// The whole training step: data, a pipeline of tensor-parallel stages, gradient reduction,
// optimizer. It combines layers, zero and pipeline, which do not know each other.
//
//   Trainer trainer(world, group, device, config, corpus);
//   trainer.step();                       // forward_backward, reduce, update
//   trainer.mean_loss();
//
// The degrees select the rank that computes a number, but never change the number: initial values,
// data and the order of micro-batches depend only on the seed and on global indices.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "layers/models/gpt.h"
#include "layers/tensor_grids/grid_context.h"
#include "machine/world/grid.h"
#include "machine/world/world.h"
#include "pipeline/execute.h"
#include "suite/configuration/training_config.h"
#include "suite/files/corpus.h"
#include "suite/trainer/model_chunks.h"
#include "suite/trainer/model_parts.h"
#include "suite/trainer/routing/step_routing.h"
#include "suite/trainer/step_graph.h"
#include "suite/trainer/tokens/step_tokens.h"
#include "zero/stages/step.h"
#include "zero/states/flat_states.h"

namespace suite {

// Rows that the ranks that exchange tokens have for each expert (layers::MoeCase's), likewise.
using RoutedRows = std::vector<std::vector<std::vector<std::int64_t>>>;

// One stage receives nothing, over any link.
inline pipeline::Receives receives_of(const TrainingConfig& config) {
  return config.pipeline.p2p_overlap && config.degrees.pp > 1 ? pipeline::Receives::ahead
                                                              : pipeline::Receives::when_needed;
}

class Trainer {
 public:
  // Collective over group, whose size is the product of the degrees.
  Trainer(machine::World& world, const machine::Group& group, machine::Device& device,
          TrainingConfig config, const Corpus& corpus);

  // config.graph: from the second call on, this launches a graph of all passes and sums
  // (step_graph.h). The timeline of such a step has no times.
  void forward_backward() { forward_backward(steps_); }
  void forward_backward(std::int64_t data_of_step);  // with the tokens of a step, from 0
  void reduce();                                     // once after forward_backward
  zero::Step& optimizer_step() { return *step_; }
  const zero::Step& optimizer_step() const { return *step_; }
  zero::StepResult update();  // also updates the loss scale by the outcome
  zero::StepResult step() {
    forward_backward();
    reduce();
    return update();
  }

  // Calls work while all values of parameters are present (ZeRO stage 3 gathers them). Collective
  // over dp.
  template <class Work>
  void with_values(const Work& work) {
    step_->before_use(parameters_);
    work();
    step_->after_use(parameters_);
  }
  // Calls work with one part of the model after another, while the part's values are present: ZeRO
  // stage 3 never gathers the whole model. Each parameter is in one call. Collective over dp.
  template <class Work>
  void with_each_part(const Work& work) {
    std::vector<bool> used(parameters_.size());
    for (const std::vector<int>& rows : parts_.rows) {
      layers::Parameters part, fresh;
      for (const int row : rows) {
        const auto at = static_cast<std::size_t>(row);
        part.push_back(parameters_[at]);
        if (!used[at]) fresh.push_back(parameters_[at]);
        used[at] = true;
      }
      step_->before_use(part);
      work(fresh);
      step_->after_use(part);
    }
  }
  std::uint64_t hash_of_values();  // of all parameters. Collective over dp

  // Writes the values in the format of gpt2_weights.h. Writes only the loaded rows of a padded
  // table. Collective over the group.
  void save(const std::string& path);

  // The counters of a training. With the values and the optimizer's states they are all that a step
  // depends on: data and dropout are drawn by the number of the step.
  struct Counters {
    std::int64_t steps = 0, updates = 0, optimizer_steps = 0;
    zero::LossScale::State scale;
    int vocabulary = 0;  // rows of the table without padding
  };
  Counters counters() const;
  void set_counters(const Counters& counters);
  // Returns whether this rank is the first of the ranks that hold the same shard of the parameter,
  // apart from replicas over dp.
  bool is_first_holder(const collectives::Parameter& parameter) const;

  // Returns the mean of the last forward_backward over all tokens that count, with the auxiliary
  // losses of experts. Collective over the group.
  double mean_loss();

  // Returns the decisions of the routers in the last forward_backward; empty without experts.
  // give_routing: the next one takes these decisions.
  const StepRouting& routing() const { return routing_; }
  void give_routing(const StepRouting& decisions);
  // Return the records of all ranks in the order of the micro-batches at degree 1, and the rows.
  // Both are empty without experts. Collective over the group.
  StepRouting gathered_routing() const;
  RoutedRows routed_rows() const;

  const TrainingConfig& config() const { return config_; }
  machine::Device& device() const { return device_; }
  const machine::Grid& grid() const { return grid_; }
  // Returns the ranks that exchange tokens, and those that hold the same experts.
  layers::ExpertGroups expert_groups() const;
  layers::Parameters& parameters() { return parameters_; }
  double loss_scale() const { return scale_.scale(); }
  machine::World& world() const { return world_; }
  const machine::Group& group() const { return group_; }
  const zero::GradientPlan& plan() const { return plan_; }
  const zero::FlatStates& states() const { return *states_; }
  const ModelParts& parts() const { return parts_; }
  // Returns the host memory of checkpoints with cpu_checkpointing and of FPDT's chunks with
  // offloading, else null. The others return the bytes that were copied so far.
  const machine::Device* activations_host() const { return activations_host_.get(); }
  layers::HostCopies chunks_copied() const {
    return attention_chunks_ ? attention_chunks_->copied() : layers::HostCopies();
  }
  layers::Checkpoints::Moved checkpoints_moved() const { return chunks_->checkpoints_moved(); }
  const pipeline::StageSchedules& schedules() const { return schedules_; }
  const pipeline::Timeline& timeline() const { return executor_->timeline(); }
  std::int64_t steps() const { return steps_; }

  struct Group {
    std::string name;
    std::unique_ptr<collectives::Communicator> communicator;  // null if this rank is not a member
    std::unique_ptr<machine::Link> gradients;  // of pp, if gradients need a separate link
    std::vector<machine::Link*> links() const;
  };
  const std::vector<Group>& groups() const { return groups_; }
  collectives::Communicator* communicator(std::string_view name) const;

  // Returns the bytes of a step's data and, on the last stage, of the losses. They count as
  // buffers.
  static std::size_t data_bytes(const TrainingConfig& config, bool has_loss);

 private:
  void check_frozen() const;
  void connect_groups();
  void connect_grid();
  void connect_plus_plus();
  machine::Group consecutive(std::string_view name, int ranks) const;  // with this one
  machine::Group ranks_of_stage(std::string_view name) const;
  machine::Group tied_group() const;
  void connect_executor();
  void connect_step();
  bool tells_of_gradients() const;
  void begin_pass(const pipeline::Action& action);
  void end_pass(const pipeline::Action& action);
  void scale_loss();
  void draw_data(std::int64_t step);
  void launch();

  machine::World& world_;
  machine::Group group_;
  machine::Device& device_;
  TrainingConfig config_;
  machine::Grid grid_;
  std::vector<Group> groups_;
  std::optional<layers::GridGroups> grid_groups_;  // with tensor-parallel-mode 2d, 2.5d or 3d
  std::optional<layers::GridContext> grid_context_;
  std::unique_ptr<machine::Device> activations_host_;
  std::unique_ptr<layers::ChunkOffload> attention_chunks_;  // with FPDT
  pipeline::StageSchedules schedules_;
  std::unique_ptr<ModelChunks> chunks_;
  layers::Parameters parameters_;
  int vocabulary_ = 0;  // rows of the table without padding
  ModelParts parts_;
  zero::GradientPlan plan_;
  std::unique_ptr<zero::FlatStates> states_;
  std::unique_ptr<zero::Step> step_;
  zero::LossScale scale_;
  std::unique_ptr<pipeline::Executor> executor_;
  pipeline::Stage work_;
  std::vector<layers::Parameters> parameters_of_chunks_;  // by chunk; a shared table in both
  bool micro_batch_is_pass_ = false;
  // Numbers of passes that add gradients: in a whole step, and so far in this step.
  std::ptrdiff_t gradient_passes_ = 0, passes_begun_ = 0;
  StepTokens tokens_;
  StepRouting routing_;
  machine::Tensor losses_;                // one double for each micro-batch, on the last stage
  std::int64_t steps_ = 0, updates_ = 0;  // updates: the steps that were not skipped
  std::optional<StepGraph> graph_;        // after the first passes, with config.graph
  bool was_launched_ = false;             // and is not reduced
};

}  // namespace suite
