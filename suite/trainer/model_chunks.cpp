#include "suite/trainer/model_chunks.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "layers/models/grids/grid_gpt.h"
#include "machine/base/names.h"
#include "pipeline/partition.h"

namespace suite {

using layers::ModelStage;

pipeline::Size pipeline_size(const TrainingConfig& config) {
  const int chunks = config.pipeline.virtual_stages.value_or(
      pipeline::find_schedule(config.pipeline.schedule).chunks);
  return {config.degrees.pp, config.micro_batches(), chunks};
}

pipeline::Placement placement(const TrainingConfig& config) {
  return pipeline::find_schedule(config.pipeline.schedule).placement(pipeline_size(config));
}

pipeline::StageSchedules schedules(const TrainingConfig& config) {
  return pipeline::all_stages(pipeline::find_schedule(config.pipeline.schedule),
                              pipeline_size(config));
}

const std::vector<std::string>& partition_methods() {
  static const std::vector<std::string> names{"uniform", "parameters", "profile"};
  return names;
}

std::vector<int> layers_of_parts(const TrainingConfig& config) {
  const int layers = config.model.layers, parts = placement(config).parts();
  if (layers < parts)
    throw std::invalid_argument(fmt::format(
        "pipeline-model-parallel-size {} with schedule {} and num-virtual-stages-per-pipeline-rank "
        "{} has {} parts, but the model has {} layers; every part requires a layer",
        config.degrees.pp, config.pipeline.schedule, pipeline_size(config).chunks, parts, layers));
  const bool profile = config.pipeline.partition_method == "profile";
  if (config.pipeline.partition_method == "uniform" ||
      (profile && config.pipeline.layer_costs.empty()))
    return pipeline::partition_uniform(layers, parts);
  if (profile) return pipeline::partition_balanced(config.pipeline.layer_costs, parts);
  if (config.pipeline.partition_method != "parameters")
    throw std::invalid_argument(machine::unknown(
        "partition-method", config.pipeline.partition_method, partition_methods()));
  std::vector<std::int64_t> costs;  // each layer counted as a stage
  for (int i = 0; i < layers; ++i)
    costs.push_back(layers::stage_parameters_count(
        config.model, {.tp = config.degrees.tp, .stage = {i, layers}}));
  return pipeline::partition_balanced(costs, parts);
}

layers::StageIndex chunk_index(const TrainingConfig& config, const pipeline::Placement& placement,
                               int stage, int chunk) {
  const std::vector<int> sizes = layers_of_parts(config);
  const int part = placement.part(stage, chunk);
  const int begin = std::accumulate(sizes.begin(), sizes.begin() + part, 0);
  return {part, placement.parts(),
          layers::BlockRange{begin, begin + sizes[static_cast<std::size_t>(part)]}};
}

std::vector<layers::StageCase> chunk_cases(const TrainingConfig& config,
                                           const pipeline::Placement& placement, int stage,
                                           const StageRank& rank) {
  std::vector<layers::StageCase> cases;
  const layers::GridRank grid =
      config.over_grid()
          ? layers::GridRank{config.grid(), rank.tp,
                             config.tensor_grid.product == layers::GridMethod::cannon}
          : layers::GridRank{};
  for (int chunk = 0; chunk < placement.chunks(); ++chunk)
    cases.push_back({config.degrees.tp,
                     chunk_index(config, placement, stage, chunk),
                     config.batch.micro_batch_size,
                     config.precision.dtype,
                     config.activations,
                     {config.degrees.cp, rank.cp, config.context},
                     {expert_degrees(config), rank.expert, {}},
                     config.fp8,
                     config.degrees.tp * config.shards(),
                     rank.compute_capability,
                     grid});
  return cases;
}

layers::ExpertParallel expert_degrees(const TrainingConfig& config) {
  return {config.expert_parallel, config.model.has_experts() ? config.expert_tensor() : 1};
}

zero::Experts zero_experts(const TrainingConfig& config) {
  if (!config.model.has_experts()) return {};
  return {config.expert_parallel, config.expert_tensor()};
}

std::vector<int> stages_of_layers(const TrainingConfig& config,
                                  const pipeline::Placement& placement) {
  std::vector<int> stages;
  int part = 0;
  for (const int size : layers_of_parts(config))
    stages.insert(stages.end(), static_cast<std::size_t>(size), placement.at(0, part++).stage);
  stages.push_back(stages.back());
  return stages;
}

ModelChunks::ModelChunks(const TrainingConfig& config, const pipeline::Placement& placement,
                         int stage, machine::Device& device, collectives::Communicator& tp,
                         machine::Device* checkpoint_host, const layers::ContextParallel& cp,
                         const std::optional<layers::MoeCommunicators>& experts,
                         collectives::Communicator* amax_group, const layers::GridContext* grid)
    : chunks_(static_cast<std::size_t>(placement.chunks())) {
  order_.resize(chunks_.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::ranges::sort(order_, {}, [&](int chunk) { return placement.part(stage, chunk); });
  collectives::Parameter* table = nullptr;  // table of an embedding on this stage
  for (const int chunk : order_) {
    auto& made = chunks_[static_cast<std::size_t>(chunk)];
    const layers::StageIndex index = chunk_index(config, placement, stage, chunk);
    if (grid)
      made = std::make_unique<layers::GridGptStage>(config.model, *grid,
                                                    config.batch.micro_batch_size, index, table);
    else
      made = std::make_unique<layers::GptStage>(
          config.model, device, tp, config.precision.dtype, index, config.activations,
          checkpoint_host, table, cp, experts, layers::Fp8Scheme{config.fp8, amax_group});
    in_order_.push_back(made.get());
    if (made->stage().first()) table = made->table();
    const layers::Parameters own = made->parameters();
    parameters_.insert(parameters_.end(), own.begin(), own.end());
  }
  const bool both_ends = table && has_loss();
  for (collectives::Parameter* parameter : parameters_) {
    bool& tied = parameter->placement.tied_over_pp;
    tied = placement.copies() > 1 || (tied && !both_ends);
  }
}

bool ModelChunks::has_loss() const {
  return std::ranges::any_of(in_order_, [](const ModelStage* one) { return one->stage().last(); });
}

void ModelChunks::initialize(const layers::Initializer& initializer) {
  for (ModelStage* chunk : in_order_) chunk->initialize(initializer);
}

void ModelChunks::set_vocabulary(std::int64_t vocabulary) {
  for (ModelStage* chunk : in_order_) chunk->set_vocabulary(vocabulary);
}

void ModelChunks::set_loss_scale(double scale) {
  for (ModelStage* chunk : in_order_) chunk->set_loss_scale(scale);
}

void ModelChunks::observe(const layers::StageObserver& observer) {
  for (ModelStage* chunk : in_order_) chunk->observe(observer);
}

layers::Checkpoints::Moved ModelChunks::checkpoints_moved() const {
  layers::Checkpoints::Moved moved;
  for (const ModelStage* chunk : in_order_) {
    moved.down += chunk->checkpoints_moved().down;
    moved.up += chunk->checkpoints_moved().up;
  }
  return moved;
}

}  // namespace suite
