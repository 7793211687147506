// Keys that neither the training step nor the planner supports, with the values that request
// nothing. Also keys that users paste but DeepSpeed does not have.

#include "suite/configuration/keys.h"

namespace suite::configuration {
namespace {

Key json(std::string_view path, std::string_view inert, std::string_view why,
         std::string_view instead = {}) {
  return {
      .deepspeed = path, .effect = Effect::refused, .inert = inert, .why = why, .instead = instead};
}
Key argument(std::string_view name, std::string_view why, std::string_view instead = {},
             std::string_view inert = {}) {
  return {
      .megatron = name, .effect = Effect::refused, .inert = inert, .why = why, .instead = instead};
}

constexpr std::string_view missing = "it is not implemented";
constexpr std::string_view no_plus = "ZeRO++ is not implemented";
constexpr std::string_view no_modules = "it is about PyTorch's modules, of which there are none";
constexpr std::string_view only_gpt = "models here are GPTs, trained densely";
constexpr std::string_view one_type = "all of a model has one type here";
constexpr std::string_view stage_cut =
    "what passes between stages is sharded with sequence parallelism";
constexpr std::string_view no_such_key =
    "DeepSpeed has no such key and ignores it: layers are recomputed where the model's own "
    "argument asks for it";

std::vector<Key> deepspeed_keys() {
  return {
      json("optimizer.params.bias_correction", "true", "Adam is run with it"),
      json("optimizer.params.amsgrad", "false", missing),
      json("optimizer.params.dampening", "0", missing),
      json("optimizer.params.nesterov", "false", missing),
      json("optimizer.params.centered", "false", missing),
      json("optimizer.params.max_grad_norm", "0", "DeepSpeed itself clips by another key",
           "gradient_clipping"),
      json("optimizer.legacy_fusion", "false", "there is one of each optimizer"),
      json("scheduler.params.last_batch_iteration", "-1", "a run begins at its first step"),
      json("prescale_gradients", "false", "gradients are divided once, at the end"),
      json("gradient_predivide_factor", "1", "gradients are divided once, at the end"),
      json("gradient_allreduce_op", "mean",
           "the sum is always divided by the tokens that count; DeepSpeed refuses sum in stage 3"),
      json("sparse_gradients", "false", "gradients are dense here"),
      json("data_types.grad_accum_dtype", "fp32|float32", "gradients are added up in float32"),
      json("data_types.param_dtype", "", "values have the type that fp16 and bf16 say",
           "bf16.enabled"),
      json("data_types.buffer_dtype", "", no_modules),
      json("fp16.auto_cast", "false", one_type),
      json("fp16.fp16_master_weights_and_grads", "false", "master weights are float32"),
      json("bf16.check_grad_overflow", "true", "a step whose gradients overflow is skipped"),
      json("bf16.immediate_grad_update", "false", "gradients are summed in float32 buffers"),
      json("bf16.bf16_master_weights_and_grads", "false", "master weights are float32"),
      json("bf16.bf16_optimizer_states", "false", "the optimizer's states are float32"),
      json("torch_autocast", "", one_type, "bf16.enabled"),
      json("amp", "", one_type, "fp16.enabled"),

      json("zero_optimization.reduce_scatter", "true", "no step here does without it"),
      json("zero_optimization.allgather_partitions", "true", "no step here does without it"),
      json("zero_optimization.round_robin_gradients", "false", "no step here does that"),
      json("zero_optimization.stage3_max_reuse_distance", "1000000000", "no step here does that",
           "zero_optimization.stage3_max_live_parameters"),
      json("zero_optimization.stage3_model_persistence_threshold", "9223372036854775807",
           "no step here does that", "zero_optimization.stage3_param_persistence_threshold"),
      json("zero_optimization.offload_optimizer.fast_init", "false", "states begin at zero anyway"),
      json("zero_optimization.offload_optimizer.super_offload", "false", missing,
           "zero_optimization.offload_optimizer.device"),
      json("zero_optimization.zero_hpz_partition_size", "0|1", no_plus),
      json("zero_optimization.zero_quantized_weights", "false", no_plus),
      json("zero_optimization.zero_quantized_gradients", "false", no_plus),
      json("zero_optimization.zero_quantized_nontrainable_weights", "false", no_plus),
      json("zero_optimization.zeropp_loco_param", "", no_plus),
      json("zero_optimization.mics_shard_size", "-1", "MiCS is not implemented",
           "zero_optimization.stage"),
      json("zero_optimization.mics_hierarchical_params_gather", "false", "MiCS is not implemented"),
      json("zero_optimization.zenflow", "", "ZenFlow is not implemented",
           "zero_optimization.offload_optimizer"),
      json("zero_optimization.stage3_use_all_reduce_for_fetch_params", "false",
           "parameters are fetched by all-gather"),
      json("zero_optimization.stage3_allgather_sequential", "false",
           "parameters are fetched in buckets", "zero_optimization.stage3_prefetch_bucket_size"),
      json("zero_optimization.stage3_module_granularity_threshold", "0", no_modules),
      json("zero_optimization.stage3_partition_stream_chunk_size", "0", no_modules),
      json("zero_optimization.leaf_module", "", no_modules),
      json("zero_optimization.load_from_fp32_weights", "true",
           "master weights are what was saved of them"),
      json("zero_optimization.elastic_checkpoint", "false", "checkpoints know their own layout"),
      json("zero_optimization.legacy_stage1", "false", "there is one stage 1"),
      json("zero_optimization.pipeline_loading_checkpoint", "false", no_modules),
      json("aio.use_gds", "false", "GPUDirect Storage is not implemented", "aio.queue_depth"),
      json("aio.overlap_events", "true", "requests always overlap", "aio.queue_depth"),

      json("activation_checkpointing.contiguous_memory_optimization", "false",
           "checkpoints have memory of their own, which does not fragment"),
      json("activation_checkpointing.number_checkpoints", "",
           "layers are recomputed as the model's arguments say",
           "Megatron's --recompute-num-layers"),
      json("activation_checkpointing.synchronize_checkpoint_boundary", "false",
           "nothing is synchronized there"),
      json("activation_checkpointing.enable", "", no_such_key,
           "Megatron's --recompute-granularity"),
      json("activation_checkpointing.enabled", "", no_such_key,
           "Megatron's --recompute-granularity"),
      json("activation_checkpointing.checkpoint_granularity", "",
           "DeepSpeed has no such key and ignores it",
           "Megatron's --recompute-granularity selective"),

      json("pipeline.activation_checkpoint_interval", "0",
           "layers are recomputed as the model's arguments say",
           "Megatron's --recompute-num-layers"),
      json("pipeline.seed_layers", "false", "values depend on the seed and their place alone"),
      json("pipeline.pipe_partitioned", "*", stage_cut, "Megatron's --sequence-parallel"),
      json("pipeline.grad_partitioned", "*", stage_cut, "Megatron's --sequence-parallel"),
      json("pipeline_parallel.enabled", "", "DeepSpeed has no such key and ignores it",
           "pipeline.stages"),
      json("tensor_parallel.tp.tp_grain_size", "1", "extents must divide"),
      json("tensor_parallel.tp_overlap_comm", "false", missing, "zero_optimization.overlap_comm"),
      json("tensor_parallel.partition_config", "", only_gpt, "tensor_parallel.autotp_size"),
      json("tensor_parallel.preset_model", "", only_gpt, "tensor_parallel.autotp_size"),
      json("sequence_parallel_size", "1",
           "sequences are sharded by a degree of the model's arguments",
           "Megatron's --context-parallel-size"),
      json("expert_parallel", "", only_gpt),
      json("use_data_before_expert_parallelism", "false", only_gpt),

      json("disable_allgather", "false", "values are gathered after each step"),
      json("graph_harvesting", "false", "there are no CUDA graphs here"),
      json("checkpoint.load_universal", "false", "checkpoints know their own layout"),
      json("checkpoint.use_node_local_storage", "false", "a checkpoint is one file",
           "--save of shardmark run"),
      json("checkpoint.parallel_write", "", "a checkpoint is one file", "--save of shardmark run"),
      json("autotuning", "", "axes are swept by the program", "shardmark run with lists of values"),
      json("elasticity", "", "the number of ranks is fixed", "train_batch_size"),
      json("curriculum_learning", "", only_gpt),
      json("data_efficiency", "", only_gpt),
      json("compression_training", "", only_gpt),
      json("weight_quantization", "", only_gpt),
      json("quantize_training", "", only_gpt),
      json("sparse_attention", "", "attention is dense here", "Megatron's --use-flash-attn"),
      json("progressive_layer_drop", "", only_gpt),
      json("eigenvalue", "", only_gpt),
      json("hybrid_engine", "", "nothing is generated here"),
      json("compile", "", no_modules),
      json("nebula", "", "a checkpoint is one file", "--save of shardmark run"),
      json("datastates_ckpt", "", "a checkpoint is one file", "--save of shardmark run"),
  };
}

constexpr std::string_view dense = "models here are dense";
constexpr std::string_view no_8_bits = "there are no products in 8 bits here";
constexpr std::string_view in_samples = "schedules count updates, not samples";

std::vector<Key> megatron_arguments() {
  return {
      argument("--use-megatron-fsdp", "stages say it", "--data-parallel-sharding-strategy", "true"),
      argument("--num-experts", dense, {}, "1"),
      argument("--expert-model-parallel-size", dense, {}, "1"),
      argument("--expert-tensor-parallel-size", dense, {}, "1"),
      argument("--moe-router-topk", dense),
      argument("--moe-token-dispatcher-type", dense),
      argument("--moe-grouped-gemm", dense),
      argument("--rampup-batch-size", "batches have one size", "--global-batch-size"),
      argument("--train-samples", in_samples, "--train-iters"),
      argument("--lr-decay-samples", in_samples, "--lr-decay-iters"),
      argument("--lr-warmup-samples", in_samples, "--lr-warmup-iters", "0"),
      argument("--lr-decay-tokens", in_samples, "--lr-decay-iters"),
      argument("--lr-warmup-tokens", in_samples, "--lr-warmup-iters", "0"),
      argument("--train-tokens", in_samples, "--train-iters"),
      argument("--lr-warmup-fraction", "a warm-up is a number of updates", "--lr-warmup-iters",
               "0"),
      argument("--decoupled-lr", missing, "--lr"),
      argument("--decoupled-min-lr", missing, "--min-lr"),
      argument("--fp8-format", no_8_bits, "--bf16"),
      argument("--fp8-recipe", no_8_bits, "--bf16"),
      argument("--fp8-param-gather", no_8_bits, "--bf16"),
      argument("--fp8-amax-history-len", no_8_bits, "--bf16"),
      argument("--fp8-amax-compute-algo", no_8_bits, "--bf16"),
      argument("--grad-reduce-in-bf16", "gradients are float32 under bfloat16",
               "communication_data_type"),
      argument("--tp-comm-overlap", missing, "--overlap-grad-reduce"),
      argument("--kv-channels", "a head has hidden-size / num-attention-heads columns"),
      argument("--rotary-percent", "all columns of a head are rotated", {}, "1"),
      argument("--apply-layernorm-1p", missing),
      argument("--squared-relu", missing, "--swiglu"),
      argument("--qk-layernorm", missing),
      argument("--pipeline-model-parallel-layout", "layers are divided by a method",
               "pipeline.partition"),
      argument("--decoder-first-pipeline-num-layers", "layers are divided by a method",
               "pipeline.partition"),
      argument("--decoder-last-pipeline-num-layers", "layers are divided by a method",
               "pipeline.partition"),
      argument("--num-distributed-optimizer-instances", "a shard has one owner", {}, "1"),
      argument("--use-tp-pp-dp-mapping", "ranks are ordered tp, cp, ep, dp, pp"),
      argument("--context-parallel-type", missing, "--context-parallel-size"),
  };
}

}  // namespace

std::vector<Key> refused_keys() {
  std::vector<Key> all = deepspeed_keys();
  for (const Key& key : megatron_arguments()) all.push_back(key);
  return all;
}

}  // namespace suite::configuration
