// The bytes that this program would hold. Declares the model, without memory, as one rank of the
// grid declares it, and sums the rooms' own formulas (zero/cost/cost.h, layers/models/gpt_memory.h,
// pipeline/execute.h). The memory oracle compares these formulas with the bytes counted in a run.
// Buffers omit the staging of collectives, which depends on the transport.

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "suite/configuration/models.h"
#include "suite/configuration/resolve.h"
#include "suite/plan/memory_plan.h"
#include "suite/plan/model_shape.h"
#include "suite/trainer/expectations.h"
#include "suite/trainer/validation.h"
#include "zero/cost/cost.h"
#include "zero/stages/compressed_reduction.h"

namespace suite::configuration {
namespace {

// A link that has a number of ranks but no transport, for declaring a model.
class NoLink final : public machine::Link {
 public:
  explicit NoLink(int ranks) : Link(machine::first_ranks("tp", ranks, 0)) {}
  machine::Transport transport() const override { return machine::Transport::shared_memory; }

 private:
  [[noreturn]] static void moved() { throw std::logic_error("NoLink: nothing can be moved"); }
  std::uint64_t do_send(int, const void*, std::size_t) override { moved(); }
  void do_wait_sent(int, std::uint64_t) override { moved(); }
  std::uint64_t last_sent(int) const override { moved(); }
  void do_receive(int, void*, std::size_t, machine::Store) override { moved(); }
  const void* do_receive_in_place(int, std::size_t) override { moved(); }
  void do_release(int) override { moved(); }
};

std::string why_not(const TrainingConfig& training) {
  if (!training.model.has_shape()) return "requires a model's shape";
  if (activation_bytes(training) > 1e16 || parameters_of(training.model) > 1e16)
    return "the model is too large to count";
  return why_no_step(training);
}

TrainingConfig held_as(TrainingConfig config, const Holding& holding) {
  config.zero.stage = holding.stage;
  config.zero.options.offload_optimizer.device = zero::find_offload_device(holding.optimizer);
  config.zero.options.offload_param.device =
      zero::find_offload_device(holding.parameters, "offload_param");
  if (holding.stage != 3) config.zero.options.plus_plus = {};
  config.model.vocabulary = padded_vocabulary(config.model, config.degrees.tp);
  validate(config);
  return config;
}

}  // namespace

Held held_by_stage(const TrainingConfig& config, int stage) {
  // Further micro-batches only repeat the middle of a schedule.
  pipeline::Size size = pipeline_size(config);
  size.micro_batches = std::min(size.micro_batches, 2 * size.stages);
  const auto schedules =
      pipeline::all_stages(pipeline::find_schedule(config.pipeline.schedule), size);
  zero::GradientPlan plan;
  ModelParts parts;
  const machine::Grid first(config.degrees, 0);
  const machine::Grid grid(config.degrees, first.rank_at(machine::Axis::pp, stage));
  machine::run_ranks(1, [&](machine::World& world) {  // has as many hosts as the grid needs
    collectives::Communicator tp(world, std::make_unique<NoLink>(config.degrees.tp)),
        ep(world, std::make_unique<NoLink>(expert_degrees(config).ranks()));
    ModelChunks model(config, schedules.placement, stage, world.host_device(), tp,
                      &world.host_device(), {}, layers::MoeCommunicators{ep, tp});
    plan = zero::gradient_plan(
        model.parameters(), config.precision.dtype, grid, static_cast<double>(config.tokens()),
        frozen_parameters(config, model.parameters()), config.gradient_dtype(),
        {config.expert_parallel, model.expert_names()});
    name_matrices(plan, model.parameters(), config);
    parts = model_parts(model);
  });
  const zero::Layout layout = zero::layout(plan, layout_options(config, parts));
  zero::Selected selected;
  for (const zero::Segment& segment : layout.segments)
    selected.push_back(
        zero::selected_if_normal(config.zero.options.gradient_compression, segment.range.size()));
  const zero::ExpectedMemory states = zero::expected_memory(
      config.zero.stage, plan, layout, config.optimizer.rule(), config.step_options(),
      model_passes(config, parts, schedules.of(stage)), selected);
  const PassagePeaks passage = passage_peaks(config, schedules, stage);
  Held held;
  held.gpu.parameters = static_cast<double>(states.parameters);
  held.gpu.gradients = static_cast<double>(states.gradients);
  held.gpu.optimizer = static_cast<double>(states.optimizer);
  held.gpu.activations = static_cast<double>(passage.activations);
  held.gpu.buffers = static_cast<double>(states.buffers + passage.buffers);
  held.cpu.parameters = static_cast<double>(states.host_parameters);
  held.cpu.optimizer = static_cast<double>(states.host_optimizer);
  held.cpu.buffers = static_cast<double>(states.host_buffers + states.compression);
  held.cpu.activations = static_cast<double>(passage.host);
  const zero::InFiles files = zero::expected_in_files(
      config.zero.stage, plan, layout, config.optimizer.rule(), config.step_options());
  held.nvme.parameters = static_cast<double>(files.values);
  held.nvme.optimizer = static_cast<double>(files.states);
  held.gpu_at_start =
      static_cast<double>(layout.value_elements) * static_cast<double>(size_of(plan.value_dtype)) +
      static_cast<double>(layout.elements) * static_cast<double>(size_of(plan.gradient_dtype));
  held.assumption = "tensor by tensor, as this program allocates; without staging of collectives";
  return held;
}

Held ours(const TrainingConfig& training, const Holding& holding) {
  Held none;
  none.not_held = why_not(training);
  if (!none.not_held.empty()) return none;
  try {
    return held_by_stage(held_as(training, holding), 0);
  } catch (const std::invalid_argument& error) {
    none.not_held = error.what();
    return none;
  }
}

}  // namespace suite::configuration
