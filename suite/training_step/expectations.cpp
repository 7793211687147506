#include "suite/training_step/expectations.h"

#include <algorithm>

#include "collectives/cost.h"
#include "layers/gpt_cost.h"
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
          config.dtype};
}

const collectives::Algorithm& chosen(const TrainingConfig& config, machine::Operation operation,
                                     std::int64_t elements, machine::Dtype dtype, int ranks) {
  return collectives::find_algorithm(
      operation,
      collectives::default_algorithm(operation, config.transport,
                                     static_cast<std::size_t>(elements) * size_of(dtype), ranks));
}

// The collectives of one micro-batch over tp.
std::vector<layers::CollectiveCalls> calls_over_tp(const Trainer& trainer) {
  std::vector<layers::CollectiveCalls> calls =
      layers::forward_calls(trainer.config().model, stage_case(trainer));
  for (const auto& call : layers::backward_calls(trainer.config().model, stage_case(trainer)))
    calls.push_back(call);
  return calls;
}

std::size_t scratch_of_collectives(const Trainer& trainer) {
  const TrainingConfig& config = trainer.config();
  const auto scratch = [&](Axis axis, machine::Operation operation, std::int64_t buffer,
                           std::int64_t count, machine::Dtype dtype) {
    const int ranks = config.degrees[axis];
    if (ranks == 1) return std::size_t{0};
    return collectives::scratch_bytes(chosen(config, operation, buffer, dtype, ranks),
                                      {trainer.grid().coordinate(axis), ranks}, count, dtype);
  };
  // Kept once for each length and dtype.
  std::map<std::pair<std::int64_t, machine::Dtype>, std::size_t> kept;
  for (const auto& call : calls_over_tp(trainer))
    kept[{call.elements, call.dtype}] =
        scratch(Axis::tp, call.operation, call.elements, call.elements, call.dtype);
  std::size_t bytes = 0;
  for (const auto& [call, size] : kept) bytes += size;
  const std::int64_t elements = trainer.states().layout().elements;
  const machine::Dtype dtype = trainer.plan().gradient_dtype;
  return bytes + (config.zero_stage == 0
                      ? scratch(Axis::dp, machine::Operation::all_reduce, elements, elements, dtype)
                      : scratch(Axis::dp, machine::Operation::reduce_scatter, elements,
                                elements / config.degrees.dp, dtype));
}

}  // namespace

std::map<Category, std::size_t> expected_peaks(const Trainer& trainer) {
  const TrainingConfig& config = trainer.config();
  const layers::StageCase stage = stage_case(trainer);
  const zero::ExpectedMemory states = zero::expected_memory(
      config.zero_stage, trainer.plan(), trainer.states().layout(), config.options.rule);
  const auto schedules = pipeline::all_stages(pipeline::find_schedule(config.schedule),
                                              config.degrees.pp, config.micro_batches());
  const pipeline::Boundary boundary{
      {std::int64_t{config.micro_batch_size} * config.model.sequence, config.model.hidden},
      config.dtype};
  const pipeline::ExpectedMemory passing =
      pipeline::expected_memory(schedules, stage.stage.index, boundary);
  const int in_flight =
      pipeline::peak_activations(schedules[static_cast<std::size_t>(stage.stage.index)]);
  return {{Category::parameters, states.parameters},
          {Category::gradients, states.gradients},
          {Category::optimizer, states.optimizer},
          {Category::activations,
           passing.activations +
               static_cast<std::size_t>(in_flight) * layers::activation_bytes(config.model, stage)},
          {Category::buffers, states.buffers + passing.buffers +
                                  Trainer::data_bytes(config, stage.stage.last()) +
                                  scratch_of_collectives(trainer) +
                                  std::max(layers::forward_buffer_bytes(config.model, stage),
                                           layers::backward_buffer_bytes(config.model, stage))}};
}

std::map<std::string, std::map<machine::TrafficLabel, std::uint64_t>> expected_bytes_sent(
    const Trainer& trainer) {
  const TrainingConfig& config = trainer.config();
  std::map<std::string, std::map<machine::TrafficLabel, std::uint64_t>> bytes;
  const int tp = config.degrees.tp;
  for (const auto& call : calls_over_tp(trainer))
    bytes["tp"][{call.operation, call.dtype}] +=
        static_cast<std::uint64_t>(config.micro_batches() * call.calls) *
        expected_traffic(chosen(config, call.operation, call.elements, call.dtype, tp),
                         {trainer.grid().coordinate(Axis::tp), tp}, call.elements, call.dtype)
            .bytes_sent;
  const auto schedules = pipeline::all_stages(pipeline::find_schedule(config.schedule),
                                              config.degrees.pp, config.micro_batches());
  const pipeline::Boundary boundary{
      {std::int64_t{config.micro_batch_size} * config.model.sequence, config.model.hidden},
      config.dtype};
  bytes["pp"][{machine::Operation::send_receive, config.dtype}] +=
      pipeline::expected_traffic(schedules, trainer.grid().coordinate(Axis::pp), boundary)
          .bytes_sent;
  for (const zero::TrafficRow& row :
       zero::expected_traffic(config.zero_stage, trainer.plan(), trainer.states().layout(),
                              zero::as_run(config.options, config.transport)))
    bytes[row.group][row.label] += row.bytes_sent;
  return bytes;
}

}  // namespace suite
