// Keys without a field. The step and the planner do not support the refused keys. DeepSpeed does
// not have some of these keys either. The ignored keys do not change measurements. They include the
// arguments of Megatron-LM's launch scripts and Megatron-DeepSpeed's.

#include <algorithm>
#include <ranges>

#include "suite/configuration/keys.h"

namespace suite::configuration {
namespace {

// names: separated by spaces; NAME=VALUE|VALUE lists the values that request nothing. inert: these
// values for the names that do not list them.
struct Reason {
  std::string_view why, instead, names, inert{};
};

constexpr std::string_view missing = "it is not implemented";
constexpr std::string_view one_type = "a model has one dtype here";
constexpr std::string_view only_gpt = "models here are GPTs, trained densely";
constexpr std::string_view in_samples = "schedules count updates, not samples";

constexpr Reason refused[] = {
    {"Adam and LAMB always use it", "", "optimizer.params.bias_correction=true"},
    {missing, "",
     "optimizer.params.amsgrad=false optimizer.params.dampening=0 "
     "optimizer.params.nesterov=false optimizer.params.centered=false "
     "optimizer.params.eps_inside_sqrt=false --apply-layernorm-1p "
     "--qk-layernorm"},
    {"DeepSpeed itself clips by another key", "gradient_clipping",
     "optimizer.params.max_grad_norm=0"},
    {"whole matrices are orthogonalized, and tp sums only their squares (Megatron-LM's "
     "distributed)",
     "", "--muon-tp-mode=distributed|duplicated"},
    {"AdamW updates what is not a matrix", "", "--muon-scalar-optimizer=adam"},
    {"Newton-Schulz multiplies in float32", "", "--muon-fp32-matmul-prec=high"},
    {"all parameters have one rate", "optimizer.params.lr",
     "optimizer.params.muon_lr optimizer.params.adam_lr"},
    {"Adafactor's learning rate is given, and it has no momentum", "optimizer.params.lr",
     "optimizer.params.relative_step=false optimizer.params.scale_parameter=false "
     "optimizer.params.warmup_init=false optimizer.params.beta1"},
    {"Adafactor's decay rate is positive here", "--adafactor-decay-rate",
     "optimizer.params.decay_rate=-0.8 optimizer.params.beta2_decay=-0.8"},
    {"each optimizer has one implementation", "", "optimizer.legacy_fusion=false"},
    {"a run starts at its first step", "", "scheduler.params.last_batch_iteration=-1"},
    {"the sum is always divided by the tokens that count; DeepSpeed rejects sum in stage 3", "",
     "gradient_allreduce_op=mean"},
    {"gradients are dense here", "", "sparse_gradients=false"},
    {"fp16 and bf16 select the dtype of values", "bf16.enabled", "data_types.param_dtype"},
    {"it applies only to PyTorch's modules", "",
     "data_types.buffer_dtype zero_optimization.stage3_module_granularity_threshold=0 "
     "zero_optimization.stage3_partition_stream_chunk_size=0 zero_optimization.leaf_module "
     "zero_optimization.pipeline_loading_checkpoint=false compile"},
    {one_type, "", "fp16.auto_cast=false"},
    {"master weights are float32", "",
     "fp16.fp16_master_weights_and_grads=false bf16.bf16_master_weights_and_grads=false"},
    {"gradients are summed in float32 buffers", "", "bf16.immediate_grad_update=false"},
    {"the optimizer's states are float32", "", "bf16.bf16_optimizer_states=false"},
    {one_type, "bf16.enabled", "torch_autocast"},
    {one_type, "fp16.enabled", "amp"},
    {"states begin at zero anyway", "", "zero_optimization.offload_optimizer.fast_init=false"},
    {missing, "zero_optimization.offload_optimizer.device",
     "zero_optimization.offload_optimizer.super_offload=false"},
    {"frozen values are coded with all others", "zero_optimization.zero_quantized_weights",
     "zero_optimization.zero_quantized_nontrainable_weights=false"},
    {"LoCo's error feedback of ZeRO++ is not implemented",
     "zero_optimization.zero_quantized_gradients", "zero_optimization.zeropp_loco_param"},
    {"MiCS is not implemented", "zero_optimization.stage", "zero_optimization.mics_shard_size=-1"},
    {"MiCS is not implemented", "", "zero_optimization.mics_hierarchical_params_gather=false"},
    {"ZenFlow is not implemented", "zero_optimization.offload_optimizer",
     "zero_optimization.zenflow"},
    {"parameters are fetched by all-gather", "",
     "zero_optimization.stage3_use_all_reduce_for_fetch_params=false"},
    {"parameters are fetched in buckets", "zero_optimization.stage3_prefetch_bucket_size",
     "zero_optimization.stage3_allgather_sequential=false"},
    {"master weights are loaded from the checkpoint", "",
     "zero_optimization.load_from_fp32_weights=true"},
    {"checkpoints know their own layout", "",
     "zero_optimization.elastic_checkpoint=false checkpoint.load_universal=false"},
    {"there is one stage 1", "", "zero_optimization.legacy_stage1=false"},
    {"GPUDirect Storage is not implemented", "aio.queue_depth", "aio.use_gds=false"},
    {"requests always overlap", "aio.queue_depth", "aio.overlap_events=true"},
    {"the model's arguments select the recomputed layers", "Megatron's --recompute-num-layers",
     "pipeline.activation_checkpoint_interval=0"},
    {"nothing is synchronized there", "",
     "activation_checkpointing.synchronize_checkpoint_boundary=false"},
    {"values depend only on the seed and their index", "", "pipeline.seed_layers=false"},
    {"messages between stages are sharded by sequence parallelism",
     "Megatron's --sequence-parallel", "pipeline.pipe_partitioned=* pipeline.grad_partitioned=*"},
    {"degrees must divide extents", "", "tensor_parallel.tp.tp_grain_size=1"},
    {only_gpt, "tensor_parallel.autotp_size",
     "tensor_parallel.partition_config tensor_parallel.preset_model"},
    {only_gpt, "",
     "expert_parallel use_data_before_expert_parallelism=false curriculum_learning "
     "data_efficiency compression_training weight_quantization quantize_training "
     "progressive_layer_drop eigenvalue"},
    {"values are gathered after each step", "", "disable_allgather=false"},
    {"a graph holds forward, backward and the sums of gradients", "--graph of shardmark run",
     "graph_harvesting=false"},
    {"a graph holds a whole iteration", "--cuda-graph-scope full_iteration",
     "--enable-cuda-graph=false --external-cuda-graph=false --cuda-graph-impl=none|local"},
    {"every rank writes its file of a checkpoint to one folder", "--save of shardmark run",
     "checkpoint.use_node_local_storage=false checkpoint.parallel_write nebula datastates_ckpt"},
    {"axes are swept by the program", "shardmark run with lists of values", "autotuning"},
    {"the number of ranks is fixed", "train_batch_size", "elasticity"},
    {"the program does not generate text", "", "hybrid_engine"},
    {"ZeRO stages select it", "--data-parallel-sharding-strategy", "--use-megatron-fsdp=true"},
    {"products of experts are always grouped", "", "--moe-grouped-gemm=true"},
    {"batches have one size", "--global-batch-size", "--rampup-batch-size"},
    {in_samples, "--train-iters", "--train-samples --train-tokens"},
    {in_samples, "--lr-decay-iters", "--lr-decay-samples --lr-decay-tokens"},
    {in_samples, "--lr-warmup-iters", "--lr-warmup-samples=0 --lr-warmup-tokens=0"},
    {"a warm-up is a number of updates", "--lr-warmup-iters", "--lr-warmup-fraction=0"},
    {missing, "--lr", "--decoupled-lr"},
    {missing, "--min-lr", "--decoupled-min-lr"},
    {"values are gathered in their own dtype", "--fp8-format", "--fp8-param-gather"},
    {"amaxes are shared over all ranks of a stage", "--fp8-format", "--tp-only-amax-red"},
    {"all blocks multiply in the same format", "--fp8-format",
     "--first-last-layers-bf16 --num-layers-at-start-in-bf16 --num-layers-at-end-in-bf16"},
    {"the products' own buffers are not shared with peers", "--tp-comm-overlap",
     "--tp-comm-overlap-cfg --tp-comm-bootstrap-backend"},
    {"a head has hidden-size / num-attention-heads columns", "", "--kv-channels"},
    {"all columns of a head are rotated", "", "--rotary-percent=1"},
    {missing, "--swiglu", "--squared-relu"},
    {"layers are divided by a method", "pipeline.partition",
     "--pipeline-model-parallel-layout --decoder-first-pipeline-num-layers "
     "--decoder-last-pipeline-num-layers"},
    {"a shard has one owner", "", "--num-distributed-optimizer-instances=1"},
    {"ranks are ordered tp, cp, ep, dp, pp", "", "--use-tp-pp-dp-mapping"},
    {missing, "--context-parallel-size", "--context-parallel-type"},
};

constexpr Reason ignored[] = {
    // Users paste these keys.
    {"DeepSpeed has no such key and ignores it; the model's own argument "
     "selects the recomputed layers",
     "Megatron's --recompute-granularity",
     "activation_checkpointing.enable activation_checkpointing.enabled"},
    {"DeepSpeed has no such key and ignores it", "Megatron's --recompute-granularity selective",
     "activation_checkpointing.checkpoint_granularity"},
    {"DeepSpeed has no such key and ignores it", "pipeline.stages", "pipeline_parallel.enabled"},
    {"the program has its own measurements and records", "",
     "steps_per_print wall_clock_breakdown memory_breakdown dump_state log_level timers "
     "activation_checkpointing.profile comms_logger flops_profiler --log-interval "
     "--log-throughput --log-timers-to-tensorboard --log-batch-size-to-tensorboard "
     "--log-validation-ppl-to-tensorboard --log-optimizer-states-to-tensorboard "
     "--log-params-norm --log-num-zeros-in-grad --log-memory-to-tensorboard --log-progress "
     "--timing-log-level --timing-log-option --profile --profile-step-start --profile-step-end "
     "--profile-ranks --use-pytorch-profiler",
     "false|none"},
    {"results are written to run.json", "--out of shardmark run",
     "tensorboard wandb csv_monitor comet --tensorboard-dir --tensorboard-log-interval "
     "--tensorboard-queue-size --wandb-project --wandb-exp-name --wandb-save-dir "
     "--wandb-entity"},
    {"it trains on generated text", "--data of shardmark run",
     "--data-path --train-data-path --mock-data --split --data-impl --data-cache-path "
     "--tokenizer-type --tokenizer-model --vocab-file --merge-file --tiktoken-pattern "
     "--num-workers --dataloader-type --no-create-attention-mask-in-dataloader "
     "--no-mmap-bin-files --reset-position-ids --reset-attention-mask --eod-mask-loss "
     "dataloader_drop_last"},
    {"the command line selects the checkpoint", "--load of shardmark run",
     "--load --no-load-optim --no-load-rng --use-checkpoint-args --finetune --init-method-std "
     "--init-method --use-cpu-initialization --no-initialization --perform-initialization"},
    {"the command line selects checkpoints", "--save of shardmark run",
     "--save --save-interval --no-save-optim --no-save-rng --ckpt-format --async-save "
     "--dist-ckpt-format --use-dist-ckpt --auto-detect-ckpt-format --ckpt-fully-parallel-load "
     "checkpoint.tag_validation zero_optimization.stage3_gather_16bit_weights_on_model_save",
     "false"},
    {"the program does not evaluate models", "", "--eval-iters --eval-interval --eval-only"},
    {"the sampler ends the run", "--max-seconds of shardmark run",
     "--exit-interval --exit-duration-in-mins --exit-signal-handler"},
    {"there is one implementation of each layer", "",
     "--transformer-impl --use-mcore-models --use-legacy-models --attention-backend "
     "--no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-swiglu-fusion "
     "--no-bias-dropout-fusion --no-rope-fusion --no-gradient-accumulation-fusion "
     "--no-persist-layer-norm --cross-entropy-loss-fusion "
     "--no-async-tensor-model-parallel-allreduce --attention-softmax-in-fp32 "
     "--no-query-key-layer-scaling --apply-query-key-layer-scaling --override-lr-scheduler "
     "--override-opt_param-scheduler --use-checkpoint-opt_param-scheduler "
     "optimizer.params.torch_adam optimizer.params.fused fp16.fused_mode "
     "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer "
     "zero_optimization.save_muon_momentum_buffer_in_memory"},
    {"the transport carries the codes", "--transport of shardmark run",
     "optimizer.params.comm_backend_name optimizer.params.cuda_aware"},
    {"the standard iteration runs, whose results gram has too", "", "optimizer.params.ns_method"},
    {"a product of a matrix with its transpose is computed in full", "", "--muon-use-syrk"},
    {"the launcher and --transport select it", "",
     "--distributed-backend --distributed-timeout-minutes --local_rank --local-rank "
     "--lazy-mpu-init --nccl-communicator-config-path --deepspeed --deepspeed_mpi "
     "--no-pipeline-parallel --deepspeed-activation-checkpointing"},
    {"another option gives the file", "--config of shardmark run", "--deepspeed_config"},
    {"there is no Python process to tune", "",
     "--manual-gc --manual-gc-interval --empty-unused-memory-level "
     "zero_optimization.override_module_apply zero_optimization.memory_efficient_linear "
     "zero_optimization.log_trace_cache_warnings"},
    {"every step is deterministic, and judged", "",
     "--deterministic-mode --check-for-nan-in-loss-and-grad "
     "zero_optimization.enable_sanity_checks zero_optimization.ignore_unused_parameters"},
    {"losses are averaged over tokens", "", "--calculate-per-token-loss"},
    {"an update always reads ahead and writes behind", "",
     "zero_optimization.offload_optimizer.pipeline_read "
     "zero_optimization.offload_optimizer.pipeline_write"},
    {"one thread submits all of a rank's requests", "aio.queue_depth", "aio.intra_op_parallelism"},
    {"each bucket is reduce-scattered", "", "zero_optimization.use_multi_rank_bucket_allreduce"},
    {"each rank owns a shard of every bucket, so copies to the host are always spread over all "
     "ranks",
     "", "zero_optimization.round_robin_gradients"},
    {"no step here reduces over sequence-parallel replicas as DeepSpeed does",
     "Megatron's --sequence-parallel", "seq_parallel_communication_data_type"},
    {"fp16 and bf16 select the dtype of values", "bf16.enabled", "tensor_parallel.dtype"},
    {"super_offload is not implemented", "",
     "zero_optimization.offload_optimizer.cpuadam_cores_perc"},
    {"the step itself accumulates gradients", "gradient_accumulation_steps",
     "managed_gradient_accumulation"},
};

void add(std::vector<Key>& all, const Reason& reason, Effect effect) {
  for (const auto word : std::views::split(reason.names, ' ')) {
    const std::string_view text(word.begin(), word.end());
    const std::size_t end = std::min(text.find('='), text.size());
    const std::string_view name = text.substr(0, end);
    Key& key =
        all.emplace_back(Key{.effect = effect,
                             .inert = end < text.size() ? text.substr(end + 1) : reason.inert,
                             .why = reason.why,
                             .instead = reason.instead});
    (name.starts_with("--") ? key.megatron : key.deepspeed) = name;
  }
}

}  // namespace

std::vector<Key> unsupported_keys() {
  std::vector<Key> all;
  for (const Reason& reason : refused) add(all, reason, Effect::refused);
  for (const Reason& reason : ignored) add(all, reason, Effect::ignored);
  return all;
}

}  // namespace suite::configuration
