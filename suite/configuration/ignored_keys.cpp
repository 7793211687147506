// Keys that change nothing that is measured: taken with a warning, and recorded as ignored. Among
// Megatron-LM's are the arguments of the launch scripts in its examples and Megatron-DeepSpeed's.

#include <ranges>

#include "suite/configuration/keys.h"

namespace suite::configuration {
namespace {

struct Reason {
  std::string_view why, instead, names;  // names: with spaces between them
  std::string_view inert = {};           // taken without a warning
};

constexpr Reason reasons[] = {
    {"the program measures and records by itself", "",
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
    {"a step starts from random values", "--load of shardmark run",
     "--load --no-load-optim --no-load-rng --use-checkpoint-args --finetune --init-method-std "
     "--init-method --use-cpu-initialization --no-initialization --perform-initialization"},
    {"nothing is saved while it is measured", "--save of shardmark run",
     "--save --save-interval --no-save-optim --no-save-rng --ckpt-format --async-save "
     "--dist-ckpt-format --use-dist-ckpt --auto-detect-ckpt-format --ckpt-fully-parallel-load "
     "checkpoint.tag_validation zero_optimization.stage3_gather_16bit_weights_on_model_save",
     "false"},
    {"nothing is evaluated", "", "--eval-iters --eval-interval --eval-only"},
    {"the sampler ends it", "--max-seconds of shardmark run",
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
    {"the launcher and --transport say it", "",
     "--distributed-backend --distributed-timeout-minutes --local_rank --local-rank "
     "--lazy-mpu-init --nccl-communicator-config-path --deepspeed --deepspeed_mpi "
     "--no-pipeline-parallel --deepspeed-activation-checkpointing"},
    {"the file is given apart", "--config of shardmark run", "--deepspeed_config"},
    {"there is no Python process to tune", "",
     "--manual-gc --manual-gc-interval --empty-unused-memory-level "
     "zero_optimization.override_module_apply zero_optimization.memory_efficient_linear "
     "zero_optimization.log_trace_cache_warnings"},
    {"every step is deterministic, and judged", "",
     "--deterministic-mode --check-for-nan-in-loss-and-grad "
     "zero_optimization.enable_sanity_checks zero_optimization.ignore_unused_parameters"},
    {"losses are averaged over tokens", "", "--calculate-per-token-loss"},
    {"the device decides whether host memory is pinned", "",
     "zero_optimization.offload_param.pin_memory "
     "zero_optimization.offload_optimizer.pin_memory"},
    {"an update always reads ahead and writes behind", "",
     "zero_optimization.offload_optimizer.pipeline_read "
     "zero_optimization.offload_optimizer.pipeline_write"},
    {"one thread submits all of a rank's requests", "aio.queue_depth", "aio.intra_op_parallelism"},
    {"each bucket is reduce-scattered", "", "zero_optimization.use_multi_rank_bucket_allreduce"},
    {"no step here reduces over sequence-parallel replicas as DeepSpeed does",
     "Megatron's --sequence-parallel", "seq_parallel_communication_data_type"},
    {"values have the type that fp16 and bf16 say", "bf16.enabled", "tensor_parallel.dtype"},
    {"super_offload is not implemented", "",
     "zero_optimization.offload_optimizer.cpuadam_cores_perc"},
    {"the step accumulates by itself", "gradient_accumulation_steps",
     "managed_gradient_accumulation"},
};

}  // namespace

std::vector<Key> ignored_keys() {
  std::vector<Key> all;
  for (const Reason& reason : reasons)
    for (const auto word : std::views::split(reason.names, ' ')) {
      const std::string_view name(word.begin(), word.end());
      Key& key = all.emplace_back(Key{.effect = Effect::ignored,
                                      .inert = reason.inert,
                                      .why = reason.why,
                                      .instead = reason.instead});
      (name.starts_with("--") ? key.megatron : key.deepspeed) = name;
    }
  return all;
}

}  // namespace suite::configuration
