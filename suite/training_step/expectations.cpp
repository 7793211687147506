#include "suite/training_step/expectations.h"

#include <algorithm>
#include <tuple>

#include "collectives/cost.h"
#include "layers/gpt_memory.h"
#include "zero/cost.h"

namespace suite {

using machine::Axis;
using machine::Category;

namespace {

layers::StageCase stage_case(const Trainer& trainer) {
  const TrainingConfig& config = trainer.config();
  return {config.degrees.tp,
          {trainer.grid().coordinate(Axis::pp), config.degrees.pp},
          config.micro_batch_size,
          config.dtype,
          config.activations};
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
  std::uint64_t bytes_sent() const {
    return collectives::expected_traffic(*algorithm_, call_, count_, dtype_).bytes_sent;
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

// The collectives of one micro-batch over tp.
std::vector<layers::CollectiveCalls> calls_over_tp(const Trainer& trainer) {
  std::vector<layers::CollectiveCalls> all;
  for (const auto& calls :
       {layers::forward_calls, layers::backward_input_calls, layers::backward_weights_calls})
    for (const auto& call : calls(trainer.config().model, stage_case(trainer))) all.push_back(call);
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

HostCheckpoints expected_host_checkpoints(const Trainer& trainer) {
  const TrainingConfig& config = trainer.config();
  const std::size_t saved = layers::stage_memory(config.model, stage_case(trainer)).host_saved;
  const int stage = trainer.grid().coordinate(Axis::pp);
  const int in_flight = pipeline::find_schedule(config.schedule)
                            .peak_activations(stage, config.degrees.pp, config.micro_batches());
  return {static_cast<std::size_t>(in_flight) * saved,
          static_cast<std::size_t>(config.micro_batches()) * saved};
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
  const TrainingConfig& config = trainer.config();
  const layers::StageCase stage = stage_case(trainer);
  const layers::StageMemory passage = layers::stage_memory(config.model, stage);
  const zero::ExpectedMemory states = expected_states(trainer);
  const auto schedules = pipeline::all_stages(pipeline::find_schedule(config.schedule),
                                              config.degrees.pp, config.micro_batches());
  const pipeline::ExpectedMemory passing =
      pipeline::expected_memory(schedules, stage.stage.index, boundary(config));
  const int in_flight =
      pipeline::peak_activations(schedules[static_cast<std::size_t>(stage.stage.index)]);
  return {{Category::parameters, states.parameters},
          {Category::gradients, states.gradients},
          {Category::optimizer, states.optimizer},
          {Category::activations,
           passing.activations + static_cast<std::size_t>(in_flight) * passage.saved},
          {Category::buffers, states.buffers + passing.buffers +
                                  Trainer::data_bytes(config, stage.stage.last()) +
                                  scratch_of_collectives(trainer) +
                                  std::max(passage.forward_buffers, passage.backward_buffers)}};
}

std::map<std::string, std::map<machine::TrafficLabel, std::uint64_t>> expected_bytes_sent(
    const Trainer& trainer) {
  const TrainingConfig& config = trainer.config();
  std::map<std::string, std::map<machine::TrafficLabel, std::uint64_t>> bytes;
  const int tp = config.degrees.tp;
  for (const auto& call : calls_over_tp(trainer))
    bytes["tp"][{call.operation, call.dtype}] +=
        static_cast<std::uint64_t>(config.micro_batches() * call.calls) *
        Collective(config, call.operation, call.dtype, trainer.grid().coordinate(Axis::tp), tp,
                   call.elements)
            .bytes_sent();
  const auto schedules = pipeline::all_stages(pipeline::find_schedule(config.schedule),
                                              config.degrees.pp, config.micro_batches());
  bytes["pp"][{machine::Operation::send_receive, config.dtype}] +=
      pipeline::expected_traffic(schedules, trainer.grid().coordinate(Axis::pp), boundary(config))
          .bytes_sent;
  for (const zero::TrafficRow& row :
       zero::expected_traffic(config.zero_stage, trainer.plan(), trainer.states().layout(),
                              zero::as_run(config.options, config.transport), config.options,
                              model_usage(config, trainer.parts())))
    bytes[row.group][row.label] += row.bytes_sent;
  if (config.uneven_tokens && config.degrees.dp > 1)
    bytes["dp"][{machine::Operation::all_reduce, machine::Dtype::float64}] +=
        Collective(config, machine::Operation::all_reduce, machine::Dtype::float64,
                   trainer.grid().coordinate(Axis::dp), config.degrees.dp, 1)
            .bytes_sent();
  return bytes;
}

}  // namespace suite
