#include "suite/training_step/step_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <stdexcept>

#include "suite/trainer/model_arguments.h"

namespace suite {

using machine::Dtype;

harness::Sweep<StepCase> step_sweep(const StepCase& usual) {
  using Case = StepCase;
  harness::Sweep<Case> sweep;
  std::vector<std::string> models = model_names(), optimizers{"adamw", "sgd"};
  if (configured)
    for (std::vector<std::string>* names : {&models, &optimizers})
      names->emplace_back("configured");
  sweep.axis("model", &Case::model, usual.model, models)
      .axis("model-args", &Case::model_args, usual.model_args)
      .axis("seq-length", &Case::seq_length, usual.seq_length)
      .axis("dtype", &Case::dtype, usual.dtype,
            {Dtype::float32, Dtype::bfloat16, Dtype::float16, Dtype::float64})
      .axis("transport", &Case::transport, usual.transport)
      .axis("schedule", &Case::schedule, usual.schedule, pipeline::schedule_names())
      .axis("num-virtual-stages-per-pipeline-rank", &Case::virtual_stages, usual.virtual_stages)
      .axis("partition-method", &Case::partition_method, usual.partition_method,
            partition_methods())
      .axis("zero-stage", &Case::zero_stage, usual.zero_stage, {0, 1, 2, 3})
      .axis("optimizer", &Case::optimizer, usual.optimizer, optimizers)
      .axis("offload_optimizer", &Case::offload_optimizer, usual.offload_optimizer,
            zero::offload_device_names())
      .axis("offload_param", &Case::offload_param, usual.offload_param,
            zero::offload_device_names())
      .axis("ranks", &Case::ranks, usual.ranks)
      .axis("tensor-model-parallel-size", &Case::tp, usual.tp)
      .axis("pipeline-model-parallel-size", &Case::pp, usual.pp)
      .axis("data-parallel-size", &Case::dp, usual.dp)
      .axis("micro-batch-size", &Case::micro_batch_size, usual.micro_batch_size)
      .axis("global-batch-size", &Case::global_batch_size, usual.global_batch_size)
      .axis("sequence-parallel", &Case::sequence_parallel, usual.sequence_parallel, {0, 1})
      .axis("recompute-granularity", &Case::recompute_granularity, usual.recompute_granularity,
            {"none", "selective", "full"})
      .axis("recompute-method", &Case::recompute_method, usual.recompute_method,
            {"uniform", "block"})
      .axis("recompute-num-layers", &Case::recompute_num_layers, usual.recompute_num_layers)
      .axis("distribute-saved-activations", &Case::distribute_saved_activations,
            usual.distribute_saved_activations, {0, 1})
      .axis("cpu-checkpointing", &Case::cpu_checkpointing, usual.cpu_checkpointing, {0, 1})
      .axis("use-flash-attn", &Case::use_flash_attn, usual.use_flash_attn, {0, 1})
      .axis("uneven-tokens", &Case::uneven_tokens, usual.uneven_tokens, {0, 1})
      .only(why_no_step);
  return sweep;
}

std::vector<harness::Variation<StepCase>> grids(std::vector<int> ranks, std::vector<int> tp,
                                                std::vector<int> pp, std::vector<int> dp) {
  using harness::vary;
  return {vary(&StepCase::ranks, std::move(ranks)), vary(&StepCase::tp, std::move(tp)),
          vary(&StepCase::pp, std::move(pp)), vary(&StepCase::dp, std::move(dp))};
}

namespace {

int virtual_stages_of(const StepCase& step) {
  const int of_schedule = pipeline::find_schedule(step.schedule).chunks;
  if (step.virtual_stages == "schedule") return of_schedule;
  const char* const end = step.virtual_stages.data() + step.virtual_stages.size();
  int number = 0;
  const auto [stop, error] = std::from_chars(step.virtual_stages.data(), end, number);
  if (error != std::errc() || stop != end || number < 1)
    throw std::invalid_argument(fmt::format(
        "num-virtual-stages-per-pipeline-rank '{}' is neither a positive number nor 'schedule', "
        "which is {} for {}",
        step.virtual_stages, of_schedule, step.schedule));
  return number;
}

// Of what no configuration says.
void choose_usual(TrainingConfig& config, const StepCase& step) {
  config.options.clip_norm = 1.0;  // Megatron's --clip-grad
  if (step.optimizer == "sgd") config.options.rule = zero::Sgd{.learning_rate = 0.1};
  // A small model's gradients are far from a half's ends: a scale that no step is skipped for.
  if (step.dtype == Dtype::float16)
    config.loss_scale = {.scaling = zero::LossScaling::megatron, .initial_scale = 1024};
  // DeepSpeed's defaults would keep a small model whole, or gather it all ahead: here vectors stay
  // and matrices go, and one layer's are gathered ahead.
  const std::int64_t hidden = config.model.hidden;
  config.stage3_param_persistence_threshold = 4 * hidden;
  config.options.stage3_prefetch_bucket_size = 12 * hidden * hidden / std::max(step.tp, 1);
  config.options.offload_optimizer.nvme.swap.folder = config.options.offload_param.swap.folder =
      std::filesystem::temp_directory_path().string();
  config.options.offload_param.max_in_cpu = 0;  // else it would all fit there
}

}  // namespace

TrainingConfig config_of(const StepCase& step, std::uint64_t seed) {
  TrainingConfig config = configured.value_or(TrainingConfig());
  config.degrees = {.tp = step.tp, .dp = step.dp, .pp = step.pp};
  if (step.model != "configured")
    set_model(config, step.model, step.seq_length);
  else
    config.model.vocabulary = padded_vocabulary(config.vocabulary, step.tp);
  apply_model_arguments(config.model, step.model_args);
  config.dtype = step.dtype;
  config.transport = step.transport;
  config.micro_batch_size = step.micro_batch_size;
  config.global_batch_size = step.global_batch_size;
  config.schedule = step.schedule;
  config.virtual_stages = virtual_stages_of(step);
  config.partition_method = step.partition_method;
  config.zero_stage = step.zero_stage;
  config.uneven_tokens = step.uneven_tokens != 0;
  config.activations = {
      .sequence_parallel = step.sequence_parallel != 0,
      .recompute_granularity = layers::recompute_granularity(step.recompute_granularity),
      .recompute_method = layers::recompute_method(step.recompute_method),
      .recompute_num_layers = step.recompute_num_layers,
      .distribute_saved_activations = step.distribute_saved_activations != 0,
      .use_flash_attn = step.use_flash_attn != 0,
      .cpu_checkpointing = step.cpu_checkpointing != 0};
  if (!configured) choose_usual(config, step);
  config.options.offload_optimizer.device = zero::find_offload_device(step.offload_optimizer);
  config.options.offload_param.device =
      zero::find_offload_device(step.offload_param, "offload_param");
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
