#include "suite/trainer/expectations.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "collectives/cost.h"
#include "layers/models/gpt_memory.h"
#include "zero/cost/cost.h"

namespace suite {

using machine::Axis;
using machine::Category;

namespace {

int stage_of(const Trainer& trainer) { return trainer.grid().coordinate(Axis::pp); }

std::vector<layers::StageCase> chunks_of(const Trainer& trainer) {
  return chunk_cases(trainer.config(), trainer.schedules().placement, stage_of(trainer));
}

// What passes between stages: with sequence parallelism a rank's own rows.
pipeline::Boundary boundary(const TrainingConfig& config) {
  const int cut = config.activations.sequence_parallel ? config.degrees.tp : 1;
  return {
      {std::int64_t{config.micro_batch_size} * config.model.sequence / cut, config.model.hidden},
      config.dtype};
}

// One collective over `ranks`, of `whole` elements, as the communicator runs it by default.
class Collective {
 public:
  Collective(const TrainingConfig& config, machine::Operation operation, machine::Dtype dtype,
             int rank, int ranks, std::int64_t whole)
      : operation_(operation),
        dtype_(dtype),
        call_{rank, ranks},
        count_(operation == machine::Operation::all_reduce ? whole : whole / ranks) {
    const std::int64_t in = operation == machine::Operation::all_gather ? count_ : whole;
    algorithm_ = &collectives::find_algorithm(
        operation,
        collectives::default_algorithm(operation, config.transport,
                                       static_cast<std::size_t>(in) * size_of(dtype), ranks));
  }
  machine::Traffic traffic() const {
    return collectives::expected_traffic(*algorithm_, call_, count_, dtype_);
  }
  std::size_t scratch() const {
    return collectives::scratch_bytes(*algorithm_, call_, count_, dtype_);
  }

 private:
  machine::Operation operation_;
  machine::Dtype dtype_;
  collectives::Call call_;
  std::int64_t count_;
  const collectives::Algorithm* algorithm_;
};

// The collectives of a step over tp: of each action those of its chunk.
std::vector<layers::CollectiveCalls> calls_over_tp(const Trainer& trainer) {
  using pipeline::Kind;
  const std::vector<layers::StageCase> chunks = chunks_of(trainer);
  std::map<std::pair<int, Kind>, int> actions;
  for (const pipeline::Action& action : trainer.schedules().of(stage_of(trainer)))
    ++actions[{action.chunk, action.kind}];
  std::vector<layers::CollectiveCalls> all;
  for (const auto& [which, times] : actions) {
    const auto& [chunk, kind] = which;
    const auto add = [&](const auto& calls) {
      for (layers::CollectiveCalls call :
           calls(trainer.config().model, chunks[static_cast<std::size_t>(chunk)])) {
        call.calls *= times;
        all.push_back(call);
      }
    };
    if (kind == Kind::forward) add(layers::forward_calls);
    if (kind == Kind::backward || kind == Kind::backward_input) add(layers::backward_input_calls);
    if (kind == Kind::backward || kind == Kind::backward_weights)
      add(layers::backward_weights_calls);
  }
  return all;
}

std::size_t scratch_of_collectives(const Trainer& trainer) {
  using machine::Operation;
  const TrainingConfig& config = trainer.config();
  // Kept once for each group, operation, length and dtype.
  std::map<std::tuple<std::string, Operation, std::int64_t, machine::Dtype>, std::size_t> kept;
  const auto keep = [&](std::string_view group, Operation operation, std::int64_t whole,
                        machine::Dtype dtype) {
    const collectives::Communicator* communicator = trainer.communicator(group);
    if (communicator && communicator->size() > 1)
      kept[{std::string(group), operation, whole, dtype}] =
          Collective(config, operation, dtype, communicator->rank(), communicator->size(), whole)
              .scratch();
  };
  for (const auto& call : calls_over_tp(trainer))
    keep("tp", call.operation, call.elements, call.dtype);
  for (const zero::CollectiveCalls& calls :
       zero::expected_calls(config.zero_stage, trainer.plan(), trainer.states().layout(),
                            config.options, model_usage(config, trainer.parts())))
    keep(calls.group, calls.operation,
         calls.operation == Operation::all_reduce ? calls.count : calls.count * calls.ranks,
         calls.dtype);
  if (config.uneven_tokens) keep("dp", Operation::all_reduce, 1, machine::Dtype::float64);
  std::size_t bytes = 0;
  for (const auto& [call, size] : kept) bytes += size;
  return bytes;
}

}  // namespace

PassagePeaks passage_peaks(const TrainingConfig& config, const pipeline::StageSchedules& schedules,
                           int stage) {
  using pipeline::Kind;
  const std::vector<layers::StageCase> chunks = chunk_cases(config, schedules.placement, stage);
  std::vector<layers::StageMemory> memory;
  for (const layers::StageCase& chunk : chunks)
    memory.push_back(layers::stage_memory(config.model, chunk));
  PassagePeaks peaks;
  std::size_t held = 0, on_host = 0, temporary = 0;
  for (const pipeline::Action& action : schedules.of(stage)) {
    const layers::StageMemory& passage = memory[static_cast<std::size_t>(action.chunk)];
    std::size_t most = 0;  // while it runs
    switch (action.kind) {
      case Kind::forward:
        most = held += passage.saved;
        on_host += passage.host_saved;
        peaks.moved_each_way += passage.host_saved;
        temporary = std::max(temporary, passage.forward_buffers);
        break;
      case Kind::backward:
        most = held;
        held -= passage.saved;
        temporary = std::max(temporary, passage.backward_buffers);
        break;
      case Kind::backward_input:
        held -= passage.saved;
        most = held + passage.input_half_peak;
        held += passage.input_half_saved;
        temporary = std::max(temporary, passage.input_half_buffers);
        break;
      case Kind::backward_weights:
        most = held;
        held -= passage.input_half_saved;
        temporary = std::max(temporary, passage.weight_half_buffers);
        break;
    }
    peaks.activations = std::max(peaks.activations, most);
    peaks.host = std::max(peaks.host, on_host);
    if (pipeline::is_backward_of_input(action.kind)) on_host -= passage.host_saved;
  }
  const pipeline::ExpectedMemory passing =
      pipeline::expected_memory(schedules, stage, boundary(config));
  const bool has_loss = std::ranges::any_of(chunks, [](const auto& c) { return c.stage.last(); });
  peaks.activations += passing.activations;
  peaks.buffers = temporary + passing.buffers + Trainer::data_bytes(config, has_loss);
  return peaks;
}

PassagePeaks passage_peaks(const Trainer& trainer) {
  return passage_peaks(trainer.config(), trainer.schedules(), stage_of(trainer));
}

zero::ExpectedMemory expected_states(const Trainer& trainer) {
  const TrainingConfig& config = trainer.config();
  return zero::expected_memory(config.zero_stage, trainer.plan(), trainer.states().layout(),
                               config.options.rule, config.options,
                               model_usage(config, trainer.parts()));
}

zero::OffloadTraffic expected_offload_traffic(const Trainer& trainer) {
  const TrainingConfig& config = trainer.config();
  return zero::expected_offload_traffic(config.zero_stage, trainer.plan(),
                                        trainer.states().layout(), config.options.rule,
                                        config.options, model_usage(config, trainer.parts()));
}

std::map<Category, std::size_t> expected_peaks(const Trainer& trainer) {
  const PassagePeaks passage = passage_peaks(trainer);
  const zero::ExpectedMemory states = expected_states(trainer);
  return {{Category::parameters, states.parameters},
          {Category::gradients, states.gradients},
          {Category::optimizer, states.optimizer},
          {Category::activations, passage.activations},
          {Category::buffers, states.buffers + passage.buffers + scratch_of_collectives(trainer)}};
}

std::map<std::string, std::map<machine::TrafficLabel, machine::Traffic>> expected_traffic(
    const Trainer& trainer) {
  const TrainingConfig& config = trainer.config();
  std::map<std::string, std::map<machine::TrafficLabel, machine::Traffic>> traffic;
  const auto add = [&](const std::string& group, machine::TrafficLabel label,
                       const machine::Traffic& one, std::int64_t times) {
    machine::Traffic& sum = traffic[group][label];
    for (std::int64_t i = 0; i < times; ++i) sum += one;
  };
  const machine::Grid& grid = trainer.grid();
  for (const auto& call : calls_over_tp(trainer))
    add("tp", {call.operation, call.dtype},
        Collective(config, call.operation, call.dtype, grid.coordinate(Axis::tp), config.degrees.tp,
                   call.elements)
            .traffic(),
        call.calls);
  add("pp", {machine::Operation::send_receive, config.dtype},
      pipeline::expected_traffic(trainer.schedules(), stage_of(trainer), boundary(config)), 1);
  for (const zero::CollectiveCalls& calls :
       zero::expected_calls(config.zero_stage, trainer.plan(), trainer.states().layout(),
                            config.options, model_usage(config, trainer.parts()))) {
    const auto& algorithm = collectives::find_algorithm(
        calls.operation, zero::algorithm_of(calls, config.options, config.transport));
    add(calls.group, {calls.operation, calls.dtype},
        collectives::expected_traffic(algorithm,
                                      {trainer.communicator(calls.group)->rank(), calls.ranks},
                                      calls.count, calls.dtype),
        calls.calls);
  }
  if (config.uneven_tokens && config.degrees.dp > 1)
    add("dp", {machine::Operation::all_reduce, machine::Dtype::float64},
        Collective(config, machine::Operation::all_reduce, machine::Dtype::float64,
                   grid.coordinate(Axis::dp), config.degrees.dp, 1)
            .traffic(),
        1);
  return traffic;
}

}  // namespace suite
