#include "suite/training_step/step_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "suite/training_step/model_arguments.h"

namespace suite {

TrainingConfig config_of(const StepCase& step, std::uint64_t seed) {
  TrainingConfig config;
  config.degrees = {.tp = step.tp, .dp = step.dp, .pp = step.pp};
  set_model(config, step.model, step.seq_length);
  apply_model_arguments(config.model, step.model_args);
  config.dtype = step.dtype;
  config.transport = step.transport;
  config.micro_batch_size = step.micro_batch_size;
  config.global_batch_size = step.global_batch_size;
  config.schedule = step.schedule;
  config.zero_stage = step.zero_stage;
  config.activations = {
      .sequence_parallel = step.sequence_parallel != 0,
      .recompute_granularity = layers::recompute_granularity(step.recompute_granularity),
      .recompute_method = layers::recompute_method(step.recompute_method),
      .recompute_num_layers = step.recompute_num_layers,
      .distribute_saved_activations = step.distribute_saved_activations != 0,
      .use_flash_attn = step.use_flash_attn != 0};
  config.options.clip_norm = 1.0;  // Megatron's --clip-grad
  // DeepSpeed's defaults would keep a small model whole, or gather it all ahead: here vectors stay
  // and matrices go, and one layer's are gathered ahead.
  const std::int64_t hidden = config.model.hidden;
  config.stage3_param_persistence_threshold = 4 * hidden;
  config.options.stage3_prefetch_bucket_size = 12 * hidden * hidden / std::max(step.tp, 1);
  config.seed = seed;
  return config;
}

std::string why_no_step(const StepCase& step) {
  if (step.ranks != step.tp * step.pp * step.dp)
    return fmt::format(
        "ranks {} is not tensor-model-parallel-size {} x pipeline-model-parallel-size {} x "
        "data-parallel-size {} = {}",
        step.ranks, step.tp, step.pp, step.dp, step.tp * step.pp * step.dp);
  try {
    config_of(step, 0).validate();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

}  // namespace suite
