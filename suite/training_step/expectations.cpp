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
  std::size_t bytes = 0;
  // Kept once for each length and dtype.
  std::map<std::pair<std::int64_t, machine::Dtype>, std::size_t> over_tp;
  for (const auto& call : calls_over_tp(trainer))
    over_tp[{call.elements, call.dtype}] =
        scratch_bytes(chosen(config, call.operation, call.elements, call.dtype, config.degrees.tp),
                      config.degrees.tp, call.elements, call.dtype);
  for (const auto& [call, scratch] : over_tp) bytes += scratch;
  if (config.zero_stage == 1 && config.degrees.dp > 1) {
    const std::int64_t share = trainer.states().layout().elements / config.degrees.dp;
    const machine::Dtype dtype = trainer.plan().gradient_dtype;
    bytes += scratch_bytes(chosen(config, machine::Operation::reduce_scatter,
                                  share * config.degrees.dp, dtype, config.degrees.dp),
                           config.degrees.dp, share, dtype);
  }
  return bytes;
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
                         trainer.grid().coordinate(Axis::tp), tp, call.elements, call.dtype)
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
