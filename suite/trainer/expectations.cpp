#include "suite/trainer/expectations.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "layers/models/fp8_cost.h"
#include "layers/models/gpt_memory.h"
#include "layers/models/grids/grid_gpt_cost.h"
#include "suite/reference/boundary_traffic.h"
#include "zero/cost/cost.h"
#include "zero/one_bit/one_bit_momenta.h"

namespace suite {

using machine::Axis;
using machine::Category;

namespace {

int stage_of(const Trainer& trainer) { return trainer.grid().coordinate(Axis::pp); }

StageRank rank_of(const Trainer& trainer) {
  const collectives::Communicator* const ep = trainer.communicator("ep");
  return {.cp = trainer.grid().coordinate(Axis::cp),
          .expert = ep != nullptr ? ep->rank() : 0,
          .tp = trainer.grid().coordinate(Axis::tp),
          .compute_capability = trainer.device().compute_capability()};
}

std::vector<layers::StageCase> chunks_of(const Trainer& trainer) {
  return chunk_cases(trainer.config(), trainer.schedules().placement, stage_of(trainer),
                     rank_of(trainer));
}

// Returns the shape of the tensor that stages exchange. With sequence parallelism it has the rank's
// own rows.
pipeline::Boundary boundary(const TrainingConfig& config) {
  const layers::StageCase stage{
      .tp = config.degrees.tp,
      .stage = {},
      .sequences = config.batch.micro_batch_size,
      .dtype = config.precision.dtype,
      .options = config.activations,
      .cp = {config.degrees.cp, 0, config.context},
      .grid = {config.over_grid() ? config.grid() : layers::TensorGrid{}}};
  return {layers::boundary_shape(config.model, stage), config.precision.dtype};
}

zero::Passes passes_of(const Trainer& trainer) {
  return model_passes(trainer.config(), trainer.parts(), trainer.schedules().of(stage_of(trainer)));
}

using Selected = collectives::CompressedAllReduce::Selected;

// The numerics oracle judges the numbers of selected elements (suite/reference/compressed_sums.h).
zero::Selected selected(const Trainer& trainer, std::int64_t Selected::*which) {
  zero::Selected all;
  if (const auto* const compressed = trainer.optimizer_step().compressed())
    for (const Selected& segment : compressed->selected()) all.push_back(segment.*which);
  return all;
}

// Returns the case of a chunk for one micro-batch, with the rows of its experts.
layers::StageCase with_rows(layers::StageCase chunk, const layers::GptConfig& model,
                            const RoutedRows& rows, int micro_batch) {
  if (rows.empty()) return chunk;
  const layers::BlockRange blocks = chunk.stage.blocks(model);
  const auto& of_layers = rows[static_cast<std::size_t>(micro_batch)];
  chunk.experts.rows = {of_layers.begin() + blocks.begin, of_layers.begin() + blocks.end};
  return chunk;
}

// Calls each(chunk, kind, times) for the actions of a step.
template <class Each>
void each_action(const Trainer& trainer, const Each& each) {
  const std::vector<layers::StageCase> chunks = chunks_of(trainer);
  std::map<std::pair<int, pipeline::Kind>, int> actions;
  for (const pipeline::Action& action : trainer.schedules().of(stage_of(trainer)))
    ++actions[{action.chunk, action.kind}];
  for (const auto& [which, times] : actions)
    each(chunks[static_cast<std::size_t>(which.first)], which.second, times);
}

// Returns the collectives of the layers in a step, over tp and cp.
std::vector<collectives::CollectiveCalls> calls_of_layers(const Trainer& trainer) {
  using pipeline::Kind;
  std::vector<collectives::CollectiveCalls> all;
  each_action(trainer, [&](const layers::StageCase& chunk, Kind kind, int times) {
    const auto add = [&](const auto& calls) {
      for (collectives::CollectiveCalls call : calls(trainer.config().model, chunk)) {
        call.calls *= times;
        all.push_back(call);
      }
    };
    if (kind == Kind::forward) add(layers::forward_calls);
    if (kind == Kind::backward || kind == Kind::backward_input) add(layers::backward_input_calls);
    if (kind == Kind::backward || kind == Kind::backward_weights)
      add(layers::backward_weights_calls);
  });
  return all;
}

// Returns the messages of attention over cp, of experts and of Cannon's products in a step.
layers::ContextMessages messages_of_layers(const Trainer& trainer) {
  using pipeline::Kind;
  layers::ContextMessages all;
  const layers::GptConfig& model = trainer.config().model;
  const auto add = [&](const layers::StageCase& chunk, Kind kind, int times) {
    if (kind == Kind::forward) layers::add(all, layers::forward_messages(model, chunk), times);
    if (kind == Kind::backward || kind == Kind::backward_input)
      layers::add(all, layers::backward_input_messages(model, chunk), times);
    if (kind == Kind::backward || kind == Kind::backward_weights)
      layers::add(all, layers::backward_weights_messages(model, chunk), times);
  };
  const RoutedRows rows = trainer.routed_rows();
  if (rows.empty()) {
    each_action(trainer, add);
    return all;
  }
  const std::vector<layers::StageCase> chunks = chunks_of(trainer);
  for (const pipeline::Action& action : trainer.schedules().of(stage_of(trainer)))
    add(with_rows(chunks[static_cast<std::size_t>(action.chunk)], model, rows, action.micro_batch),
        action.kind, 1);
  return all;
}

collectives::CallsCost cost_of(const Trainer& trainer, const zero::Rule& rule) {
  const TrainingConfig& config = trainer.config();
  zero::StepOptions options = config.step_options();
  options.rule = rule;
  collectives::CallsCost cost;
  const auto add = [&](const collectives::CollectiveCalls& calls, std::string_view asked = {}) {
    cost.add(calls, *trainer.communicator(calls.group), asked);
  };
  for (const collectives::CollectiveCalls& calls : calls_of_layers(trainer)) add(calls);
  for (const collectives::CollectiveCalls& calls :
       zero::expected_calls(config.zero.stage, trainer.plan(), trainer.states().layout(), options,
                            passes_of(trainer), selected(trainer, &Selected::last),
                            trainer.communicator("dp")->rank()))
    add(calls, zero::asked_algorithm(calls, options));
  if (config.counts_tokens())
    add({"dp", machine::Operation::all_reduce, machine::Dtype::float64, config.shards(), 1});
  return cost;
}

// The bytes of micro-batches in flight in one memory.
struct RunningPeaks {
  std::size_t held = 0, activations = 0, buffers = 0;  // now; peaks

  void run(pipeline::Kind kind, const layers::HeldMemory& passage) {
    using pipeline::Kind;
    std::size_t most = 0, temporary = 0;  // while the action runs
    switch (kind) {
      case Kind::forward:
        most = held += passage.saved;
        temporary = passage.forward_buffers;
        break;
      case Kind::backward:
        most = held;
        held -= passage.saved;
        temporary = passage.backward_buffers;
        break;
      case Kind::backward_input:
        held -= passage.saved;
        most = held + passage.input_half_peak;
        held += passage.input_half_saved;
        temporary = passage.input_half_buffers;
        break;
      case Kind::backward_weights:
        most = held;
        held -= passage.input_half_saved;
        temporary = passage.weight_half_buffers;
        break;
    }
    activations = std::max(activations, most);
    buffers = std::max(buffers, temporary);
  }
};

}  // namespace

// The codes of 1-bit Adam need no scratch, so its cost is that of the warm-up.
collectives::CallsCost cost_of_calls(const Trainer& trainer) {
  return cost_of(trainer, trainer.config().optimizer.rule());
}

std::vector<std::string> groups_by_library(const Trainer& trainer) {
  const collectives::CallsCost calls = cost_of_calls(trainer);
  std::vector<std::string> groups;
  for (const Trainer::Group& group : trainer.groups())
    if (!calls.by_library(group.name).empty()) groups.push_back(group.name);
  return groups;
}

PassagePeaks passage_peaks(const TrainingConfig& config, const pipeline::StageSchedules& schedules,
                           int stage, const StageRank& rank, const RoutedRows& rows) {
  using pipeline::Kind;
  const std::vector<layers::StageCase> chunks =
      chunk_cases(config, schedules.placement, stage, rank);
  // By micro-batch and chunk, if the rows of experts are given; else by chunk.
  std::vector<layers::StageMemory> memory;
  for (std::size_t i = 0; i < std::max<std::size_t>(rows.size(), 1); ++i)
    for (const layers::StageCase& chunk : chunks)
      memory.push_back(layers::stage_memory(
          config.model, with_rows(chunk, config.model, rows, static_cast<int>(i))));
  PassagePeaks peaks;
  RunningPeaks on_device, on_host;
  std::size_t lasting = 0;
  for (const pipeline::Action& action : schedules.of(stage)) {
    const std::size_t first =
        rows.empty() ? 0 : static_cast<std::size_t>(action.micro_batch) * chunks.size();
    const auto chunk = static_cast<std::size_t>(action.chunk);
    const layers::StageMemory& passage = memory[first + chunk];
    on_device.run(action.kind, passage);
    on_host.run(action.kind, passage.host);
    layers::HostCopies copies;
    if (action.kind == Kind::forward) {
      peaks.checkpoints_each_way += passage.checkpoints_on_host;
      copies = layers::forward_copies(config.model, chunks[chunk]);
    } else if (pipeline::is_backward_of_input(action.kind)) {
      copies = layers::backward_input_copies(config.model, chunks[chunk]);
    }
    peaks.chunks.to_host += copies.to_host;
    peaks.chunks.to_device += copies.to_device;
  }
  peaks.activations = on_device.activations;
  peaks.host = {on_host.activations, on_host.buffers};
  const pipeline::ExpectedMemory passing =
      pipeline::expected_memory(schedules, stage, boundary(config), receives_of(config));
  const bool has_loss = std::ranges::any_of(chunks, [](const auto& c) { return c.stage.last(); });
  for (const layers::StageCase& chunk : chunks)
    lasting += chunk.grid.on() ? layers::grids::stage_state(config.model, chunk)
                               : layers::fp8_state(config.model, chunk);
  peaks.activations += passing.activations;
  peaks.buffers =
      on_device.buffers + lasting + passing.buffers + Trainer::data_bytes(config, has_loss);
  return peaks;
}

PassagePeaks passage_peaks(const Trainer& trainer, const RoutedRows& rows) {
  return passage_peaks(trainer.config(), trainer.schedules(), stage_of(trainer), rank_of(trainer),
                       rows);
}

zero::ExpectedMemory expected_states(const Trainer& trainer, std::int64_t updates) {
  const TrainingConfig& config = trainer.config();
  return zero::expected_memory(config.zero.stage, trainer.plan(), trainer.states().layout(),
                               zero::rule_after(config.optimizer.rule(), updates),
                               config.step_options(), passes_of(trainer),
                               selected(trainer, &Selected::largest));
}

zero::OffloadTraffic expected_offload_traffic(const Trainer& trainer) {
  const TrainingConfig& config = trainer.config();
  return zero::expected_offload_traffic(config.zero.stage, trainer.plan(),
                                        trainer.states().layout(), config.optimizer.rule(),
                                        config.step_options(), passes_of(trainer));
}

std::map<Category, std::size_t> expected_peaks(const Trainer& trainer, const RoutedRows& rows,
                                               std::int64_t updates) {
  const PassagePeaks passage = passage_peaks(trainer, rows);
  const zero::ExpectedMemory states = expected_states(trainer, updates);
  const collectives::CallsCost calls = cost_of_calls(trainer);
  const machine::Link& link = trainer.communicator("tp")->link();
  // Staged collectives hold their scratch in host memory, which the trainer's device does not
  // count.
  const std::size_t scratch = link.stages(trainer.states().device()) ? 0 : calls.scratch();
  const std::size_t codes =
      trainer.optimizer_step().compression_host() ? 0 : states.compression;  // on a GPU
  std::map<Category, std::size_t> peaks{
      {Category::parameters, states.parameters},
      {Category::gradients, states.gradients},
      {Category::optimizer, states.optimizer},
      {Category::activations, passage.activations},
      {Category::buffers, states.buffers + passage.buffers + scratch}};
  if (codes > 0) peaks[Category::compression] = codes;
  if (link.is_rendezvous()) peaks[Category::links] = calls.staging();
  return peaks;
}

std::map<std::string, std::map<machine::TrafficLabel, machine::Traffic>> expected_traffic(
    const Trainer& trainer) {
  const TrainingConfig& config = trainer.config();
  const std::int64_t updates = trainer.optimizer_step().optimizer().steps() - 1;
  auto traffic = cost_of(trainer, zero::rule_after(config.optimizer.rule(), updates)).traffic();
  traffic["pp"][{machine::Operation::send_receive, config.precision.dtype}] +=
      boundary_traffic(trainer.schedules().placement, stage_of(trainer), config.micro_batches(),
                       boundary(config).bytes());
  layers::add(traffic, messages_of_layers(trainer));
  return traffic;
}

}  // namespace suite
