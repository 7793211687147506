#include "suite/configuration/deepspeed_keys.h"

#include <algorithm>
#include <array>
#include <string>

#include "machine/base/names.h"

namespace suite::configuration {
namespace {

#define AT(member) (+[](Training& t) -> Field { return &t.member; })

constexpr double any = 9.3e18, tiny = 1e-300;

Key at(std::string_view path, FieldOf field, Limits limits = {}, std::string_view since = {}) {
  return {.path = path, .field = field, .limits = std::move(limits), .since = since};
}
Key dtype_at(std::string_view path, FieldOf field) {
  return at(path, field,
            {.choices = {"fp16", "bf16", "fp32"},
             .synonyms = {{"float16", "fp16"}, {"bfloat16", "bf16"}, {"float32", "fp32"}}});
}
Key none(std::string_view path, std::string_view inert, std::string_view why,
         std::string_view instead = {}) {
  return {.path = path, .inert = inert, .why = why, .instead = instead};
}

constexpr std::string_view harness_does = "the program measures and records by itself";
constexpr std::string_view no_plus = "ZeRO++ is not implemented";
constexpr std::string_view no_meaning = "it is about PyTorch's modules, of which there are none";
constexpr std::string_view only_gpt = "models here are GPTs, trained densely";

const std::vector<Key>& table() {
  static const std::vector<Key> keys{
      at("train_batch_size", AT(batch.train_batch_size), {.least = 1, .most = 1e9}),
      at("train_micro_batch_size_per_gpu", AT(batch.train_micro_batch_size_per_gpu),
         {.least = 1, .most = 1e5}),
      at("gradient_accumulation_steps", AT(batch.gradient_accumulation_steps),
         {.least = 1, .most = 1e7}),
      at("optimizer.type", AT(optimizer.type),
         {.choices = {"AdamW", "SGD", "RMSprop"}, .synonyms = {{"Adam", "AdamW"}}}),
      at("optimizer.params.lr", AT(optimizer.learning_rate), {.most = 1e6}),
      at("optimizer.params.betas", AT(optimizer.betas), {.most = 1 - 0x1p-53}),
      at("optimizer.params.eps", AT(optimizer.epsilon), {.least = tiny, .most = 1}),
      at("optimizer.params.weight_decay", AT(optimizer.weight_decay), {.most = 1e6}),
      none("optimizer.params.bias_correction", "true", "Adam is run with it"),
      at("optimizer.params.adam_w_mode", AT(optimizer.decoupled_decay)),
      none("optimizer.params.torch_adam", "*", "there is one of each optimizer"),
      none("optimizer.params.fused", "*", "there is one of each optimizer, and it is fused"),
      none("optimizer.params.amsgrad", "false", "it is not implemented"),
      at("optimizer.params.momentum", AT(optimizer.momentum), {.most = 1 - 0x1p-53}),
      at("optimizer.params.alpha", AT(optimizer.smoothing), {.most = 1 - 0x1p-53}),
      none("optimizer.params.dampening", "0", "it is not implemented"),
      none("optimizer.params.nesterov", "false", "it is not implemented"),
      none("optimizer.params.centered", "false", "it is not implemented"),
      none("optimizer.params.max_grad_norm", "0", "DeepSpeed itself clips by another key",
           "gradient_clipping"),
      none("optimizer.legacy_fusion", "false", "there is one of each optimizer"),
      at("scheduler.type", AT(scheduler.type),
         {.choices = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"}}),
      at("scheduler.params.warmup_min_lr", AT(scheduler.warmup_min_lr), {.most = 1e6}),
      at("scheduler.params.warmup_max_lr", AT(scheduler.warmup_max_lr), {.most = 1e6}),
      at("scheduler.params.warmup_num_steps", AT(scheduler.warmup_num_steps)),
      at("scheduler.params.warmup_type", AT(scheduler.warmup_type), {.choices = {"log", "linear"}}),
      at("scheduler.params.total_num_steps", AT(scheduler.total_num_steps), {.least = 1}),
      at("scheduler.params.warmup_min_ratio", AT(scheduler.warmup_min_ratio), {.most = 1}),
      at("scheduler.params.cos_min_ratio", AT(scheduler.cos_min_ratio), {.most = 1}),
      none("scheduler.params.last_batch_iteration", "-1", "a run begins at its first step"),
      at("gradient_clipping", AT(gradients.clipping), {.most = 1e30},
         "1.0 since 2026-06-23 (DeepSpeed pull request 8068); 0, which is off, before"),
      at("prescale_gradients", AT(gradients.prescale)),
      at("gradient_predivide_factor", AT(gradients.predivide_factor),
         {.least = tiny, .most = 1e30}),
      at("gradient_allreduce_op", AT(gradients.allreduce_op), {.choices = {"mean", "sum"}}),
      none("sparse_gradients", "false", "gradients are dense here"),
      dtype_at("communication_data_type", AT(gradients.communication_data_type)),
      dtype_at("seq_parallel_communication_data_type",
               AT(gradients.seq_parallel_communication_data_type)),
      dtype_at("data_types.grad_accum_dtype", AT(gradients.accumulation_dtype)),
      none("data_types.param_dtype", "", "values have the type that fp16 and bf16 say",
           "bf16.enabled"),
      none("data_types.buffer_dtype", "", no_meaning),
      at("fp16.enabled", AT(fp16.enabled)),
      at("fp16.loss_scale", AT(fp16.loss_scale), {.most = 1e30}),
      at("fp16.initial_scale_power", AT(fp16.initial_scale_power), {.most = 100}),
      at("fp16.loss_scale_window", AT(fp16.loss_scale_window), {.least = 1}),
      at("fp16.hysteresis", AT(fp16.hysteresis), {.least = 1}),
      at("fp16.consecutive_hysteresis", AT(fp16.consecutive_hysteresis)),
      at("fp16.min_loss_scale", AT(fp16.min_loss_scale), {.least = tiny, .most = 1e30}),
      none("fp16.auto_cast", "false", "all of a model has one type here"),
      none("fp16.fused_mode", "*", "there is one optimizer"),
      none("fp16.fp16_master_weights_and_grads", "false", "master weights are float32"),
      at("bf16.enabled", AT(bf16.enabled)),
      at("bf16.check_grad_overflow", AT(bf16.check_grad_overflow), {},
         "true since DeepSpeed pull request 8035; false before"),
      none("bf16.immediate_grad_update", "false", "gradients are summed in float32 buffers"),
      none("bf16.bf16_master_weights_and_grads", "false", "master weights are float32"),
      none("bf16.bf16_optimizer_states", "false", "the optimizer's states are float32"),
      none("torch_autocast", "", "all of a model has one type here", "bf16.enabled"),
      none("amp", "", "all of a model has one type here", "fp16.enabled"),

      at("zero_optimization.stage", AT(zero.stage), {.most = 3}),
      at("zero_optimization.contiguous_gradients", AT(zero.contiguous_gradients)),
      at("zero_optimization.reduce_scatter", AT(zero.reduce_scatter)),
      at("zero_optimization.reduce_bucket_size", AT(zero.reduce_bucket_size), {.least = 1}),
      at("zero_optimization.allgather_partitions", AT(zero.allgather_partitions)),
      at("zero_optimization.allgather_bucket_size", AT(zero.allgather_bucket_size), {.least = 1}),
      at("zero_optimization.overlap_comm", AT(zero.overlap_comm), {},
         "none, which is true in stage 3 only; false in older releases"),
      at("zero_optimization.use_multi_rank_bucket_allreduce",
         AT(zero.use_multi_rank_bucket_allreduce)),
      at("zero_optimization.round_robin_gradients", AT(zero.round_robin_gradients)),
      at("zero_optimization.sub_group_size", AT(zero.sub_group_size), {.least = 1}),
      at("zero_optimization.stage3_prefetch_bucket_size", AT(zero.prefetch_bucket_size)),
      at("zero_optimization.stage3_param_persistence_threshold",
         AT(zero.param_persistence_threshold)),
      at("zero_optimization.stage3_model_persistence_threshold",
         AT(zero.model_persistence_threshold), {.most = any}),
      at("zero_optimization.stage3_max_live_parameters", AT(zero.max_live_parameters)),
      at("zero_optimization.stage3_max_reuse_distance", AT(zero.max_reuse_distance)),
      at("zero_optimization.stage3_gather_16bit_weights_on_model_save",
         AT(zero.gather_16bit_weights_on_model_save)),
      at("zero_optimization.offload_param.device", AT(zero.offload_param.device),
         {.choices = {"none", "cpu", "nvme"}}),
      at("zero_optimization.offload_param.nvme_path", AT(zero.offload_param.nvme_path)),
      at("zero_optimization.offload_param.buffer_count", AT(zero.offload_param.buffer_count),
         {.most = 1e6}),
      at("zero_optimization.offload_param.buffer_size", AT(zero.offload_param.buffer_size)),
      at("zero_optimization.offload_param.max_in_cpu", AT(zero.offload_param.max_in_cpu)),
      at("zero_optimization.offload_param.pin_memory", AT(zero.offload_param.pin_memory), {},
         "true; false in earlier releases"),
      at("zero_optimization.offload_optimizer.device", AT(zero.offload_optimizer.device),
         {.choices = {"none", "cpu", "nvme"}}),
      at("zero_optimization.offload_optimizer.nvme_path", AT(zero.offload_optimizer.nvme_path)),
      at("zero_optimization.offload_optimizer.buffer_count",
         AT(zero.offload_optimizer.buffer_count), {.most = 1e6}),
      at("zero_optimization.offload_optimizer.pin_memory", AT(zero.offload_optimizer.pin_memory),
         {}, "true; false in earlier releases"),
      at("zero_optimization.offload_optimizer.pipeline_read",
         AT(zero.offload_optimizer.pipeline_read)),
      at("zero_optimization.offload_optimizer.pipeline_write",
         AT(zero.offload_optimizer.pipeline_write)),
      at("zero_optimization.offload_optimizer.ratio", AT(zero.offload_optimizer.ratio),
         {.most = 1}),
      none("zero_optimization.offload_optimizer.fast_init", "false", "states begin at zero anyway"),
      none("zero_optimization.offload_optimizer.super_offload", "false", "it is not implemented",
           "zero_optimization.offload_optimizer.device"),
      none("zero_optimization.offload_optimizer.cpuadam_cores_perc", "*",
           "it is of super_offload, which is not implemented"),
      none("zero_optimization.zero_hpz_partition_size", "0|1", no_plus),
      none("zero_optimization.zero_quantized_weights", "false", no_plus),
      none("zero_optimization.zero_quantized_gradients", "false", no_plus),
      none("zero_optimization.zero_quantized_nontrainable_weights", "false", no_plus),
      none("zero_optimization.zeropp_loco_param", "", no_plus),
      none("zero_optimization.mics_shard_size", "-1", "MiCS is not implemented",
           "zero_optimization.stage"),
      none("zero_optimization.mics_hierarchical_params_gather", "false", "MiCS is not implemented"),
      none("zero_optimization.zenflow", "", "ZenFlow is not implemented",
           "zero_optimization.offload_optimizer"),
      none("zero_optimization.stage3_use_all_reduce_for_fetch_params", "false",
           "parameters are fetched by all-gather"),
      none("zero_optimization.stage3_allgather_sequential", "false",
           "parameters are fetched in buckets", "zero_optimization.stage3_prefetch_bucket_size"),
      none("zero_optimization.stage3_module_granularity_threshold", "0", no_meaning),
      none("zero_optimization.stage3_partition_stream_chunk_size", "0", no_meaning),
      none("zero_optimization.leaf_module", "", no_meaning),
      none("zero_optimization.override_module_apply", "*", no_meaning),
      none("zero_optimization.memory_efficient_linear", "*", no_meaning),
      none("zero_optimization.ignore_unused_parameters", "*", "all parameters are used"),
      none("zero_optimization.load_from_fp32_weights", "true",
           "master weights are what was saved of them"),
      none("zero_optimization.elastic_checkpoint", "false", "checkpoints know their own layout"),
      none("zero_optimization.legacy_stage1", "false", "there is one stage 1"),
      none("zero_optimization.pipeline_loading_checkpoint", "false", no_meaning),
      none("zero_optimization.log_trace_cache_warnings", "*", no_meaning),
      none("zero_optimization.enable_sanity_checks", "*", "every step is judged anyway"),
      none("zero_optimization.save_muon_momentum_buffer_in_memory", "*", "there is no Muon here"),
      none("zero_allow_untested_optimizer", "*", "there is no optimizer here that is not tested"),
      none("zero_force_ds_cpu_optimizer", "*", "there is one of each optimizer"),

      at("aio.block_size", AT(aio.block_size), {.least = 512}),
      at("aio.queue_depth", AT(aio.queue_depth), {.least = 1, .most = 1e6}),
      at("aio.intra_op_parallelism", AT(aio.intra_op_parallelism), {.least = 1, .most = 1e4}),
      at("aio.single_submit", AT(aio.single_submit)),
      at("aio.overlap_events", AT(aio.overlap_events)),
      none("aio.use_gds", "false", "GPUDirect Storage is not implemented", "aio.queue_depth"),

      at("activation_checkpointing.partition_activations", AT(activations.partition_activations)),
      at("activation_checkpointing.cpu_checkpointing", AT(activations.cpu_checkpointing)),
      at("activation_checkpointing.contiguous_memory_optimization",
         AT(activations.contiguous_memory_optimization)),
      at("activation_checkpointing.number_checkpoints", AT(activations.number_checkpoints),
         {.least = 1, .most = 1e6}),
      at("activation_checkpointing.synchronize_checkpoint_boundary",
         AT(activations.synchronize_checkpoint_boundary)),
      none("activation_checkpointing.profile", "false", harness_does),
      none("activation_checkpointing.enable", "",
           "DeepSpeed has no such key and ignores it: layers are recomputed where the model's own "
           "argument asks for it",
           "Megatron's --recompute-granularity"),
      none("activation_checkpointing.enabled", "",
           "DeepSpeed has no such key and ignores it: layers are recomputed where the model's own "
           "argument asks for it",
           "Megatron's --recompute-granularity"),
      none("activation_checkpointing.checkpoint_granularity", "",
           "DeepSpeed has no such key and ignores it",
           "Megatron's --recompute-granularity selective"),

      at("pipeline.stages", AT(degrees.pipeline), {.least = 1, .most = 1e5}),
      at("pipeline.partition", AT(degrees.partition),
         {.choices = {"best", "uniform", "parameters", "profile"}}),
      none("pipeline.seed_layers", "false", "values depend on the seed and their place alone"),
      none("pipeline.activation_checkpoint_interval", "0",
           "layers are recomputed as the model's arguments say",
           "Megatron's --recompute-num-layers"),
      none("pipeline.pipe_partitioned", "*",
           "what passes between stages is cut with "
           "sequence parallelism",
           "Megatron's --sequence-parallel"),
      none("pipeline.grad_partitioned", "*",
           "what passes between stages is cut with "
           "sequence parallelism",
           "Megatron's --sequence-parallel"),
      none("pipeline_parallel.enabled", "", "DeepSpeed has no such key and ignores it",
           "pipeline.stages"),
      at("tensor_parallel.enabled", AT(degrees.tensor_parallel)),
      at("tensor_parallel.autotp_size", AT(degrees.tensor), {.least = 1, .most = 1e5}),
      none("tensor_parallel.tp.tp_grain_size", "1", "extents must divide"),
      none("tensor_parallel.tp_overlap_comm", "false", "it is not implemented",
           "zero_optimization.overlap_comm"),
      none("tensor_parallel.dtype", "*", "values have the type that fp16 and bf16 say",
           "bf16.enabled"),
      none("tensor_parallel.partition_config", "", only_gpt, "tensor_parallel.autotp_size"),
      none("tensor_parallel.preset_model", "", only_gpt, "tensor_parallel.autotp_size"),
      none("sequence_parallel_size", "1", "sequences are cut by a degree of the model's arguments",
           "Megatron's --context-parallel-size"),
      none("expert_parallel", "", only_gpt),
      none("use_data_before_expert_parallelism", "false", only_gpt),

      at("steps_per_print", AT(reports.steps_per_print), {.least = 1},
         "none; 10 in older releases"),
      at("wall_clock_breakdown", AT(reports.wall_clock_breakdown)),
      at("memory_breakdown", AT(reports.memory_breakdown)),
      at("vocabulary_size", AT(model.vocabulary_size), {.least = 1, .most = 1e9}),
      none("dump_state", "false", "the resolved configuration is always printed"),
      none("disable_allgather", "false", "values are gathered after each step"),
      none("graph_harvesting", "false", "there are no CUDA graphs here"),
      none("dataloader_drop_last", "*", "every sequence has the whole length"),
      none("log_level", "*", harness_does),
      none("checkpoint.tag_validation", "*", "checkpoints are named by a file"),
      none("checkpoint.load_universal", "false", "checkpoints know their own layout"),
      none("checkpoint.use_node_local_storage", "false", "a checkpoint is one file",
           "--save of shardmark run"),
      none("checkpoint.parallel_write", "", "a checkpoint is one file", "--save of shardmark run"),
      none("comms_logger", "", "every byte on the wire is counted and recorded anyway"),
      none("flops_profiler", "", harness_does),
      none("tensorboard", "", "results are written to run.json", "--out of shardmark run"),
      none("wandb", "", "results are written to run.json", "--out of shardmark run"),
      none("csv_monitor", "", "results are written to run.json", "--out of shardmark run"),
      none("comet", "", "results are written to run.json", "--out of shardmark run"),
      none("autotuning", "", "axes are swept by the program", "shardmark run with lists of values"),
      none("elasticity", "", "the number of ranks is fixed", "train_batch_size"),
      none("curriculum_learning", "", only_gpt),
      none("data_efficiency", "", only_gpt),
      none("compression_training", "", only_gpt),
      none("weight_quantization", "", only_gpt),
      none("quantize_training", "", only_gpt),
      none("sparse_attention", "", "attention is dense here", "Megatron's --use-flash-attn"),
      none("progressive_layer_drop", "", only_gpt),
      none("eigenvalue", "", only_gpt),
      none("hybrid_engine", "", "nothing is generated here"),
      none("compile", "", no_meaning),
      none("nebula", "", "a checkpoint is one file", "--save of shardmark run"),
      none("datastates_ckpt", "", "a checkpoint is one file", "--save of shardmark run"),
      none("timers", "*", harness_does),
      none("managed_gradient_accumulation", "*", "the step accumulates by itself",
           "gradient_accumulation_steps"),
  };
  return keys;
}
#undef AT

constexpr std::array aliases{
    Alias{"zero_optimization.cpu_offload", "zero_optimization.offload_optimizer.device", "cpu"},
    Alias{"zero_optimization.cpu_offload_param", "zero_optimization.offload_param.device", "cpu"},
    Alias{"zero_optimization.cpu_offload_params", "zero_optimization.offload_param.device", "cpu"},
    Alias{"zero_optimization.cpu_offload_use_pin_memory",
          "zero_optimization.offload_optimizer.pin_memory"},
    Alias{"zero_optimization.stage3_gather_fp16_weights_on_model_save",
          "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
    Alias{"aio.thread_count", "aio.intra_op_parallelism"},
    Alias{"seq_parallel_comm_data_type", "seq_parallel_communication_data_type"},
    Alias{"bfloat16", "bf16"},
    Alias{"tensor_parallel.tp_size", "tensor_parallel.autotp_size", "", false},
    Alias{"tensor_parallel.tp.tp_size", "tensor_parallel.autotp_size", "", false},
};

std::string_view last_name(std::string_view path) { return path.substr(path.rfind('.') + 1); }
std::string_view section_of(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}
bool lies_in(std::string_view path, std::string_view section) {
  return path.size() > section.size() && path.starts_with(section) && path[section.size()] == '.';
}

}  // namespace

std::span<const Key> deepspeed_keys() { return table(); }
std::span<const Alias> deepspeed_aliases() { return aliases; }

const Key* find_key(std::string_view path) {
  const auto found = std::ranges::find(table(), path, &Key::path);
  return found == table().end() ? nullptr : &*found;
}

bool is_section(std::string_view path) {
  return std::ranges::any_of(table(), [&](const Key& key) { return lies_in(key.path, path); });
}

std::string nearest_key(std::string_view path) {
  for (const Key& key : table())
    if (key.field && last_name(key.path) == last_name(path)) return std::string(key.path);
  // Siblings first, sections among them: of a long path most letters are the section's.
  const std::string_view section = section_of(path);
  std::vector<std::string> siblings, all;
  for (const Key& key : table()) {
    if (!key.field) continue;
    all.emplace_back(last_name(key.path));
    if (!section.empty() && !lies_in(key.path, section)) continue;
    const std::string_view rest = section.empty() ? key.path : key.path.substr(section.size() + 1);
    siblings.emplace_back(rest.substr(0, rest.find('.')));
  }
  const std::string name(last_name(path));
  if (const std::string near = machine::nearest(name, siblings); !near.empty())
    return section.empty() ? near : std::string(section) + "." + near;
  const std::string near = machine::nearest(name, all);
  for (const Key& key : table())
    if (key.field && !near.empty() && last_name(key.path) == near) return std::string(key.path);
  return "";
}

}  // namespace suite::configuration
