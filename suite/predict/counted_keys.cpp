#include "suite/predict/counted_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <ranges>
#include <stdexcept>

#include "suite/trainer/validation.h"

namespace suite::predict {
namespace {

using enum Taken;

constexpr CountedKey rows[] = {
    {"--num-layers --hidden-size --ffn-hidden-size --num-attention-heads --num-query-groups "
     "--architecture --swiglu --disable-bias-linear --untie-embeddings-and-output-weights "
     "--normalization --position-embedding-type --max-position-embeddings",
     counted, "products, bytes of kernels and parameters"},
    {"--hidden-dropout --attention-dropout", counted,
     "whether masks are read and written; any probability"},
    {"--num-experts --moe-layer-freq --moe-ffn-hidden-size --moe-shared-expert-intermediate-size "
     "--moe-router-topk --moe-expert-capacity-factor --moe-pad-expert-input-to-capacity "
     "--moe-token-dispatcher-type --moe-router-load-balancing-type --moe-aux-loss-coeff "
     "--expert-model-parallel-size --expert-tensor-parallel-size",
     counted, "by layers/experts/moe_cost.h, with the same number of rows for all experts"},
    {"dtype", counted, "rates and bytes; double is rejected"},
    {"--fp8-format --fp8-recipe", counted,
     "rate gpu.fp8_tflops, codes and scales of operands, their messages, memory"},
    {"--tensor-model-parallel-size tensor_parallel.autotp_size pipeline.stages data-parallel-size "
     "--context-parallel-size --sequence-parallel train_micro_batch_size_per_gpu train_batch_size",
     counted, "degrees and batch"},
    {"--cp-comm-type cp-a2a-size", counted, "by layers/context_parallel/context_cost.h"},
    {"tensor_parallel.tp_overlap_comm --tp-comm-overlap-ag --tp-comm-overlap-rs "
     "--tp-comm-bulk-dgrad --tp-comm-bulk-wgrad --tp-comm-overlap-rs-dgrad",
     counted, "communication of tp beside products, with software that does not hide it"},
    {"schedule --num-virtual-stages-per-pipeline-rank", counted, "the simulated pipeline"},
    {"zero_optimization.stage", counted, "volumes of zero/cost/cost.h, memory"},
    {"zero_optimization.zero_hpz_partition_size zero_optimization.zero_quantized_weights "
     "zero_optimization.zero_quantized_gradients",
     counted, "bytes of each group, kernels that code and decode, memory"},
    {"zero_optimization.stage3_param_persistence_threshold "
     "zero_optimization.stage3_model_persistence_threshold "
     "zero_optimization.stage3_max_reuse_distance",
     counted, "gathers of the declared step"},
    {"zero_optimization.reduce_scatter zero_optimization.allgather_partitions "
     "communication_data_type data_types.grad_accum_dtype",
     counted, "bytes over dp"},
    {"gradient-compression compression-density compression-deviations", counted,
     "bytes over dp, kernels with errors; values are normally distributed"},
    {"optimizer.type optimizer.params.momentum optimizer.params.weight_decay "
     "--muon-nesterov --muon-split-qkv --muon-num-ns-steps",
     counted,
     "bytes of the update's kernels, operations of Newton-Schulz, messages, memory; a 1-bit "
     "optimizer after its freeze_step, and before it"},
    {"uneven-tokens", counted, "the number of tokens that count, which declared steps sum over dp"},
    {"freeze", counted, "gradients, their messages and states; MFU counts all parameters"},
    {"zero_optimization.offload_optimizer.device zero_optimization.offload_param.device "
     "zero_optimization.offload_optimizer.ratio zero_optimization.offload_optimizer.delayed_update",
     counted, "copies, the update on the host, files"},
    {"zero_optimization.reduce_bucket_size zero_optimization.allgather_bucket_size "
     "zero_optimization.stage3_prefetch_bucket_size zero_optimization.stage3_max_live_parameters "
     "zero_optimization.sub_group_size zero_optimization.offload_optimizer.buffer_count "
     "zero_optimization.offload_param.buffer_count zero_optimization.offload_param.buffer_size "
     "zero_optimization.offload_param.max_in_cpu zero_optimization.overlap_comm",
     counted, "memory; --software selects what is hidden, by layer and not by bucket"},
    {"--recompute-granularity --recompute-method --recompute-num-layers "
     "activation_checkpointing.partition_activations activation_checkpointing.cpu_checkpointing",
     counted, "the second forward, its messages, copies of checkpoints, memory"},
    {"--use-flash-attn fused-epilogues", counted, "bytes of kernels, memory"},
    {"--fp8-amax-history-len", counted, "memory"},

    {"model model-args --seq-length --group-query-attention vocabulary_size "
     "--make-vocab-size-divisible-by sequence_parallel_size tensor_parallel.enabled "
     "gradient_accumulation_steps --num-layers-per-virtual-pipeline-stage",
     resolved, "they set keys above"},

    {"--norm-epsilon --rotary-base --moe-router-pre-softmax --moe-z-loss-coeff "
     "--moe-token-drop-policy optimizer.params.lr optimizer.params.betas --adam-beta1 "
     "--adam-beta2 optimizer.params.eps optimizer.params.adam_w_mode --muon-coefficient-type "
     "--muon-scale-mode --muon-extra-scale-factor --adafactor-decay-rate "
     "optimizer.params.clip_threshold optimizer.params.alpha optimizer.params.max_coeff "
     "optimizer.params.min_coeff optimizer.params.coeff_beta optimizer.params.factor_max "
     "optimizer.params.factor_min optimizer.params.factor_threshold gradient_clipping "
     "scheduler.type scheduler.params.warmup_min_lr scheduler.params.warmup_max_lr "
     "scheduler.params.warmup_num_steps scheduler.params.warmup_type "
     "scheduler.params.total_num_steps scheduler.params.warmup_min_ratio "
     "scheduler.params.cos_min_ratio --train-iters --lr-decay-iters --lr-warmup-iters --min-lr "
     "--lr-decay-style fp16.loss_scale fp16.initial_scale_power --initial-loss-scale "
     "fp16.loss_scale_window fp16.hysteresis fp16.consecutive_hysteresis fp16.min_loss_scale "
     "--seed --fp8-margin --fp8-amax-compute-algo prescale_gradients gradient_predivide_factor "
     "bf16.check_grad_overflow optimizer.params.freeze_step",
     unaffected, "numbers: the same kernels run"},
    {"cp-placement", unaffected, "all ranks of cp have equal work"},
    {"transport aio.block_size aio.queue_depth aio.single_submit "
     "zero_optimization.offload_param.nvme_path zero_optimization.offload_optimizer.nvme_path "
     "zero_optimization.offload_param.pin_memory zero_optimization.offload_optimizer.pin_memory",
     unaffected, "the cluster file has the rates"},
    {"zero_optimization.contiguous_gradients", unaffected, "--software selects what is fused"},
    {"--overlap-p2p-communication", unaffected,
     "--software selects whether messages between stages are hidden"},
    {"--min-8bit-size", unaffected, "all parameters of adamw_8bit count as codes"},

    {"sparse_attention.block sparse_attention.attention sparse_attention.different_layout_per_head "
     "sparse_attention.horizontal_global_attention sparse_attention.num_local_blocks "
     "sparse_attention.num_global_blocks sparse_attention.num_different_global_patterns "
     "sparse_attention.num_random_blocks sparse_attention.num_sliding_window_blocks "
     "sparse_attention.local_window_blocks sparse_attention.global_block_indices "
     "sparse_attention.global_block_end_indices",
     unaffected, "sparse_attention.mode, which they need, is rejected"},

    {"pipeline.partition", rejected, "layers are divided uniformly"},
    {"sparse_attention.mode", rejected, "no cluster file has a rate of block-sparse kernels"},
    {"tp-algorithm dp-algorithm embedding-algorithm", rejected,
     "the fastest of the usual algorithms runs"},
};

[[noreturn]] void reject(std::string_view key, std::string_view value, std::string_view why) {
  throw std::invalid_argument(
      fmt::format("predict does not support {} {}, because {}; leave it out", key, value, why));
}

}  // namespace

std::span<const CountedKey> counted_keys() { return rows; }

const CountedKey* find_counted(std::string_view name) {
  const auto found = std::ranges::find_if(rows, [&](const CountedKey& row) {
    return std::ranges::any_of(std::views::split(row.names, ' '), [&](const auto& one) {
      return std::string_view(one.begin(), one.end()) == name;
    });
  });
  return found == std::end(rows) ? nullptr : found;
}

std::string counted_keys_list() {
  constexpr std::string_view names[] = {"Counted", "Counted", "No effect", "Rejected"};  // by Taken
  constexpr std::size_t most_columns = 120;
  std::string out;
  for (const CountedKey& row : rows) {
    std::string line = fmt::format("- {}:", names[static_cast<std::size_t>(row.taken)]);
    const auto add = [&](const std::string& word) {
      if (line.size() + 1 + word.size() > most_columns) {
        out += line + "\n";
        line = " ";
      }
      line += " " + word;
    };
    for (const auto one : std::views::split(row.names, ' ')) {
      const std::string_view key(one.begin(), one.end());
      const bool last = key.end() == row.names.end();
      add(fmt::format("`{}`{}", key, last ? "." : ","));
    }
    std::string about(row.about);
    about.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(about.front())));
    for (const auto one : std::views::split(about + ".", ' '))
      add(std::string(one.begin(), one.end()));
    out += line + "\n";
  }
  return out;
}

void check_counted(const TrainingConfig& config, const Cluster& cluster) {
  if (config.precision.dtype == machine::Dtype::float64)
    reject("dtype", "double", "a cluster has no rate of products in double");
  if (config.pipeline.partition_method != "uniform")
    reject("pipeline.partition", config.pipeline.partition_method, "it divides layers uniformly");
  for (const auto& [key, name] : {std::pair("tp-algorithm", config.algorithms.tp),
                                  {"dp-algorithm", config.algorithms.dp},
                                  {"embedding-algorithm", config.algorithms.embedding}})
    if (!name.empty()) reject(key, name, "it takes the fastest of the usual algorithms");
  if (config.model.sparse.on())
    reject("sparse_attention.mode", name(config.model.sparse.pattern.mode),
           "no cluster file has a rate of block-sparse kernels");
  config.context.validate(config.degrees.cp, config.model.sequence,
                          config.model.heads / config.degrees.tp,
                          config.model.query_groups() / config.degrees.tp);
  if (!config.fp8.on()) return;
  if (cluster.gpu.fp8 <= 0)
    throw std::invalid_argument(
        fmt::format("fp8-format {} requires gpu.fp8_tflops of cluster {}, the dense peak of its "
                    "GPUs in 8 bits (got 0)",
                    name(config.fp8.format), cluster.name));
  validate(config);
}

}  // namespace suite::predict
