// The bytes that this program would hold. Declares the model, without memory, as one rank of the
// grid declares it, and sums the rooms' own formulas (zero/cost/cost.h, layers/models/gpt_memory.h,
// pipeline/execute.h). The memory oracle compares these formulas with the bytes counted in a run.
// Buffers omit the staging of collectives, which depends on the transport.

#include <algorithm>
#include <stdexcept>

#include "suite/configuration/models.h"
#include "suite/configuration/resolve.h"
#include "suite/plan/declared_stage.h"
#include "suite/plan/memory_plan.h"
#include "suite/plan/model_shape.h"
#include "suite/trainer/expectations.h"
#include "suite/trainer/validation.h"
#include "zero/cost/cost.h"

namespace suite::configuration {
namespace {

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
  const DeclaredStage declared = declare_stage(config, stage, 2 * pipeline_size(config).stages);
  const auto& [schedules, plan, parts, layout, selected, passes] = declared;
  const zero::ExpectedMemory states =
      zero::expected_memory(config.zero.stage, plan, layout, config.optimizer.rule(),
                            config.step_options(), passes, selected);
  const PassagePeaks passage = passage_peaks(config, schedules, stage);
  Held held;
  held.gpu.parameters = static_cast<double>(states.parameters);
  held.gpu.gradients = static_cast<double>(states.gradients);
  held.gpu.optimizer = static_cast<double>(states.optimizer);
  held.gpu.activations = static_cast<double>(passage.activations);
  const bool codes_on_gpu = machine::between_devices(config.transport);
  held.gpu.buffers = static_cast<double>(states.buffers + passage.buffers +
                                         (codes_on_gpu ? states.compression : 0));
  held.cpu.parameters = static_cast<double>(states.host_parameters);
  held.cpu.optimizer = static_cast<double>(states.host_optimizer);
  held.cpu.buffers = static_cast<double>(
      states.host_buffers + (codes_on_gpu ? 0 : states.compression) + passage.host.buffers);
  held.cpu.activations = static_cast<double>(passage.host.activations);
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
