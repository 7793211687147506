#include "suite/configuration/step_config.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "suite/configuration/model_shape.h"
#include "suite/configuration/sources.h"
#include "suite/training_step/step_case.h"

namespace suite::configuration {
namespace {

int as_int(std::int64_t value) {
  if (value > std::numeric_limits<int>::max())
    throw std::invalid_argument(fmt::format("{} is more than this program counts to", value));
  return static_cast<int>(value);
}

layers::GptConfig model_of(const Model& m, int tp) {
  layers::GptConfig model{.layers = as_int(m.num_layers),
                          .hidden = as_int(m.hidden_size),
                          .heads = as_int(m.num_attention_heads),
                          .vocabulary = suite::padded_vocabulary(as_int(m.vocabulary_size), tp),
                          .sequence = as_int(m.seq_length)};
  model.normalization = layers::normalization(m.normalization);
  model.swiglu = m.swiglu;
  if (m.ffn_hidden_size > 0) model.ffn_hidden_size = as_int(m.ffn_hidden_size);
  model.position_embedding_type = layers::position_embedding_type(m.position_embedding_type);
  if (m.num_query_groups > 0 && m.num_query_groups != m.num_attention_heads) {
    model.group_query_attention = true;
    model.num_query_groups = as_int(m.num_query_groups);
  }
  model.disable_bias_linear = m.disable_bias_linear;
  model.untie_embeddings_and_output_weights = m.untie_embeddings_and_output_weights;
  model.hidden_dropout = m.hidden_dropout;
  model.attention_dropout = m.attention_dropout;
  return model;
}

zero::Rule rule_of(const Optimizer& o) {
  if (o.type == "SGD") {
    if (o.momentum > 0 || o.weight_decay > 0)
      return zero::Momentum{o.learning_rate, o.momentum, o.weight_decay};
    return zero::Sgd{o.learning_rate};
  }
  if (o.type == "RMSprop")
    return zero::RmsProp{o.learning_rate, o.smoothing, o.epsilon, o.weight_decay};
  if (!o.decoupled_decay)
    return zero::Adam{o.learning_rate, o.betas[0], o.betas[1], o.epsilon, o.weight_decay};
  return zero::AdamW{o.learning_rate, o.betas[0], o.betas[1], o.epsilon, o.weight_decay};
}

LearningRate learning_rate_of(const Training& t) {
  const Scheduler& s = t.scheduler;
  LearningRate rate{.highest = t.optimizer.learning_rate};
  if (!s.type.empty()) {
    rate.style = s.type;
    if (s.type != "WarmupCosineLR") rate.highest = s.warmup_max_lr;
    rate.lowest = s.warmup_min_lr;
    rate.warmup = s.warmup_num_steps;
    rate.total = s.total_num_steps.value_or(0);
    rate.logarithmic_warmup = s.warmup_type == "log";
    rate.warmup_min_ratio = s.warmup_min_ratio;
    rate.cosine_min_ratio = s.cos_min_ratio;
  } else if (s.train_iters || s.lr_decay_iters || s.lr_warmup_iters) {
    rate.style = s.lr_decay_style == "constant" ? "megatron-constant" : s.lr_decay_style;
    rate.lowest = s.min_lr;
    rate.warmup = s.lr_warmup_iters.value_or(0);
    rate.total = s.lr_decay_iters ? *s.lr_decay_iters : s.train_iters.value_or(0);
    if (rate.total <= rate.warmup && rate.style != "megatron-constant")
      throw std::invalid_argument(fmt::format(
          "--lr-decay-iters {} is not above --lr-warmup-iters {}", rate.total, rate.warmup));
  }
  return rate;
}

zero::LossScaleOptions loss_scale_of(const Fp16& f) {
  if (!f.enabled || f.loss_scale > 0)
    return {.scaling = zero::LossScaling::constant, .initial_scale = f.enabled ? f.loss_scale : 1};
  return {.scaling = zero::find_loss_scaling(f.automaton),
          .initial_scale = f.initial_loss_scale,
          .min_scale = f.min_loss_scale,
          .window = f.loss_scale_window,
          .hysteresis = as_int(f.hysteresis),
          .consecutive_hysteresis = f.consecutive_hysteresis};
}

// Keys that the planner knows and a step would ignore: whether they ask for what no step does.
std::string ignored(const Training& t) {
  const Zero usual, &z = t.zero;
  const Activations& a = t.activations;
  for (const auto& [asked, what] :
       {std::pair{!z.reduce_scatter, "reduce_scatter false"},
        {!z.allgather_partitions, "allgather_partitions false"},
        {z.round_robin_gradients, "round_robin_gradients"},
        {z.model_persistence_threshold != usual.model_persistence_threshold,
         "stage3_model_persistence_threshold"},
        {z.max_reuse_distance != usual.max_reuse_distance, "stage3_max_reuse_distance"},
        {a.contiguous_memory_optimization, "contiguous_memory_optimization"},
        {a.number_checkpoints.has_value(), "number_checkpoints"},
        {a.synchronize_checkpoint_boundary, "synchronize_checkpoint_boundary"},
        {t.bf16.enabled && !t.bf16.check_grad_overflow, "bf16.check_grad_overflow false"}})
    if (asked) return fmt::format("{}: no step here does that", what);
  return "";
}

}  // namespace

std::string why_no_step(const Training& t) {
  if (const std::string why = ignored(t); !why.empty()) return why;
  const Model& m = t.model;
  if (t.degrees.context > 1) return "context parallelism is not implemented";
  if (has_shape(m) && m.position_embedding_type == "none")
    return "--position-embedding-type none is not implemented";
  if (has_shape(m) && m.max_position_embeddings > 0 && m.max_position_embeddings < m.seq_length)
    return "--max-position-embeddings below --seq-length is not implemented";
  if (const std::string& sent = t.gradients.communication_data_type;
      !sent.empty() && sent != "fp32")
    return fmt::format(
        "communication_data_type {}: here gradients are float32 on the wire; "
        "zero_step judges narrower ones",
        sent);
  if (t.gradients.allreduce_op != "mean")
    return "gradient_allreduce_op sum: the sum is always divided by the tokens that count";
  if (t.gradients.prescale || t.gradients.predivide_factor != 1)
    return "prescale_gradients and gradient_predivide_factor: gradients are divided once, at the "
           "end";
  if (!t.gradients.accumulation_dtype.empty() && t.gradients.accumulation_dtype != "fp32")
    return "data_types.grad_accum_dtype: gradients are added up in float32";
  return "";
}

TrainingConfig step_config(const Training& t) {
  const Degrees& d = t.degrees;
  const Activations& a = t.activations;
  TrainingConfig config;
  config.degrees = {.tp = as_int(d.tensor), .dp = as_int(d.data), .pp = as_int(d.pipeline)};
  config.virtual_stages = as_int(d.virtual_stages);
  if (config.virtual_stages > 1) config.schedule = "interleaved_1f1b";
  if (d.partition != "best") config.partition_method = d.partition;
  if (has_shape(t.model)) {
    config.model = model_of(t.model, config.degrees.tp);
    config.vocabulary = as_int(t.model.vocabulary_size);
  }
  config.dtype = t.dtype();
  config.zero_stage = as_int(t.zero.stage);
  config.micro_batch_size = as_int(t.batch.train_micro_batch_size_per_gpu);
  config.global_batch_size = as_int(t.batch.train_batch_size);
  config.seed = static_cast<std::uint64_t>(t.seed);
  config.activations = {
      .sequence_parallel = d.sequence_parallel && d.tensor > 1,
      .recompute_granularity = layers::recompute_granularity(a.recompute_granularity),
      .recompute_method = layers::recompute_method(a.recompute_method),
      .recompute_num_layers = as_int(a.recompute_num_layers),
      .distribute_saved_activations =
          a.partition_activations && a.recompute_granularity == "full" && d.tensor > 1,
      .use_flash_attn = a.use_flash_attn,
      .cpu_checkpointing = a.cpu_checkpointing && a.recompute_granularity == "full"};
  config.learning_rate = learning_rate_of(t);
  config.loss_scale = loss_scale_of(t.fp16);
  config.stage3_param_persistence_threshold = t.zero.param_persistence_threshold;
  zero::StepOptions& options = config.options;
  options.rule = rule_of(t.optimizer);
  if (t.gradients.clipping > 0) options.clip_norm = t.gradients.clipping;
  options.allgather_bucket_size = t.zero.allgather_bucket_size;
  options.overlap_comm = t.zero.overlaps();
  options.contiguous_gradients = t.zero.contiguous_gradients;
  options.stage3_prefetch_bucket_size = t.zero.prefetch_bucket_size;
  options.stage3_max_live_parameters = t.zero.max_live_parameters;
  config.reduce_bucket_size = t.zero.reduce_bucket_size;
  const OffloadOptimizer& o = t.zero.offload_optimizer;
  zero::StateOptions& states = options.offload_optimizer;
  states.device = zero::find_offload_device(o.device);
  if (states.device == zero::OffloadDevice::cpu) states.cpu.ratio = o.ratio;
  states.nvme.sub_group_size = t.zero.sub_group_size;
  states.nvme.buffer_count = as_int(o.buffer_count);
  if (!o.nvme_path.empty()) states.nvme.swap.folder = o.nvme_path;
  states.nvme.swap.io = {.block_size = static_cast<std::size_t>(t.aio.block_size),
                         .queue_depth = as_int(t.aio.queue_depth),
                         .single_submit = t.aio.single_submit};
  const OffloadParameters& p = t.zero.offload_param;
  zero::ValueOptions& values = options.offload_param;
  values.device = zero::find_offload_device(p.device, "offload_param");
  values.buffer_count = as_int(p.buffer_count);
  values.buffer_size = p.buffer_size;
  values.max_in_cpu = p.max_in_cpu;
  values.swap = {.folder = p.nvme_path.empty() ? "." : p.nvme_path, .io = states.nvme.swap.io};
  return config;
}

harness::AxisFlags step_flags(const TrainingConfig& config) {
  const layers::ActivationOptions& a = config.activations;
  harness::AxisFlags flags{
      {"model", "configured"},
      {"seq-length", "model"},
      {"optimizer", "configured"},
      {"model-args", "none"},
      {"uneven-tokens", "0"},
      {"dtype", std::string(name(config.dtype))},
      {"zero-stage", std::to_string(config.zero_stage)},
      {"offload_optimizer", std::string(name(config.options.offload_optimizer.device))},
      {"offload_param", std::string(name(config.options.offload_param.device))},
      {"tensor-model-parallel-size", std::to_string(config.degrees.tp)},
      {"pipeline-model-parallel-size", std::to_string(config.degrees.pp)},
      {"data-parallel-size", std::to_string(config.degrees.dp)},
      {"micro-batch-size", std::to_string(config.micro_batch_size)},
      {"global-batch-size", std::to_string(config.global_batch_size)},
      {"sequence-parallel", a.sequence_parallel ? "1" : "0"},
      {"recompute-granularity", std::string(layers::name(a.recompute_granularity))},
      {"recompute-method", std::string(layers::name(a.recompute_method))},
      {"recompute-num-layers", std::to_string(a.recompute_num_layers)},
      {"distribute-saved-activations", a.distribute_saved_activations ? "1" : "0"},
      {"cpu-checkpointing", a.cpu_checkpointing ? "1" : "0"},
      {"use-flash-attn", a.use_flash_attn ? "1" : "0"}};
  // Else the files say nothing of the order: it is the command line's.
  if (config.virtual_stages > 1) {
    flags["schedule"] = config.schedule;
    flags["num-virtual-stages-per-pipeline-rank"] = std::to_string(config.virtual_stages);
  }
  if (config.partition_method != "uniform") flags["partition-method"] = config.partition_method;
  return flags;
}

Resolved use_configuration(Sources sources, const std::vector<std::string>& units,
                           harness::AxisFlags& axes) {
  using harness::UsageError;
  const std::string& file =
      sources.deepspeed_file.empty() ? sources.megatron_file : sources.deepspeed_file;
  if (units != std::vector<std::string>{"gpt_step"} &&
      units != std::vector<std::string>{"training_speed"})
    throw UsageError(
        fmt::format("{} configures gpt_step or training_speed: name one of them", file));
  const auto ranks = axes.find("ranks");
  const std::vector<int> several = ranks == axes.end()
                                       ? std::vector<int>{}
                                       : harness::AxisText<int>::parse_list("ranks", ranks->second);
  if (several.size() != 1)
    throw UsageError(fmt::format("{} is for one number of ranks: say --ranks N", file));
  sources.gpus = several[0];
  if (const auto model = axes.find("model"); model != axes.end()) {
    sources.model = model->second;
    axes.erase(model);
  } else if (sources.megatron_file.empty()) {
    sources.model = "small";
  }
  Resolved resolved = resolve(sources);
  if (!has_shape(resolved.training.model))
    throw UsageError(fmt::format("{} says no model's shape: give --model", file));
  if (const std::string why = why_no_step(resolved.training); !why.empty())
    throw UsageError(fmt::format("{}: {}", file, why));
  try {
    configured = step_config(resolved.training);
    configured->validate();
  } catch (const std::invalid_argument& error) {
    throw UsageError(fmt::format("{}: {}", file, error.what()));
  }
  for (const auto& [axis, value] : step_flags(*configured)) {
    const auto [given, added] = axes.try_emplace(axis, value);
    if (!added && given->second != value)
      throw UsageError(
          fmt::format("--{} is {}, and {} makes it {}", axis, given->second, file, value));
  }
  return resolved;
}

}  // namespace suite::configuration
