// Keys of a step: precision, pipeline, degrees, batch, optimizer, activations. Case names list the
// axes in this order.

#include <algorithm>
#include <initializer_list>

#include "collectives/communicator/group_algorithms.h"
#include "pipeline/schedule.h"
#include "suite/configuration/keys.h"

namespace suite::configuration {
namespace {

using Config = const TrainingConfig&;

constexpr double below_one = 1 - 0x1p-53, tiny = 1e-300;
constexpr std::string_view one_bit =
    "of the 1-bit optimizers 1-bit Adam and 1-bit LAMB are implemented (one_bit_adam, "
    "one_bit_lamb)";
constexpr std::string_view eight_bits = "of the 8-bit optimizers AdamW is implemented (adamw_8bit)";
constexpr Limits degree() { return {.least = 1, .most = 1e5}; }

const Needs half{"fp16.enabled",
                 [](Config c) { return c.precision.dtype == machine::Dtype::float16; }};
const Needs dynamic{"fp16.enabled and a dynamic loss scale",
                    [](Config c) { return half.met(c) && c.precision.constant_loss_scale == 0; }};
const Needs in_8_bits{"fp8-format hybrid or e4m3", [](Config c) { return c.fp8.on(); }};
const Needs delayed_scaling{"fp8-format and fp8-recipe delayed", [](Config c) {
                              return c.fp8.on() && c.fp8.recipe == layers::Fp8Recipe::delayed;
                            }};
// The optimizers that a key concerns are listed, so a new one is not among them by accident.
bool is_one_of(Config c, std::initializer_list<std::string_view> types) {
  return std::ranges::find(types, c.optimizer.type) != types.end();
}
const Needs adamw{"optimizer.type AdamW", [](Config c) { return is_one_of(c, {"adamw"}); }};
const Needs lamb{"optimizer.type Lamb or OneBitLamb", [](Config c) {
                   return is_one_of(c, {"lamb", "one_bit_lamb"});
                 }};
const Needs one_bit_lamb{"optimizer.type OneBitLamb",
                         [](Config c) { return is_one_of(c, {"one_bit_lamb"}); }};
const Needs one_bits{"optimizer.type OneBitAdam or OneBitLamb",
                     [](Config c) { return c.optimizer.is_one_bit(); }};
const Needs adamw_8bit{"--optimizer adamw_8bit", [](Config c) { return c.optimizer.is_8bit(); }};
const Needs muon{"optimizer.type Muon", [](Config c) { return is_one_of(c, {"muon"}); }};
const Needs adafactor{"optimizer.type Adafactor",
                      [](Config c) { return is_one_of(c, {"adafactor"}); }};
const Needs with_betas{
    "optimizer.type AdamW, AdamW8bit, Lamb, Lion, Muon, OneBitAdam or OneBitLamb", [](Config c) {
      return c.optimizer.is_one_bit() ||
             is_one_of(c, {"adamw", "adamw_8bit", "lamb", "lion", "muon"});
    }};
const Needs with_epsilon{
    "optimizer.type AdamW, AdamW8bit, Lamb, Muon, OneBitAdam, OneBitLamb or RMSprop", [](Config c) {
      return c.optimizer.is_one_bit() ||
             is_one_of(c, {"adamw", "adamw_8bit", "lamb", "muon", "rmsprop"});
    }};
const Needs with_momentum{"optimizer.type SGD or Muon", [](Config c) {
                            return is_one_of(c, {"sgd", "muon"});
                          }};
const Needs rmsprop{"optimizer.type RMSprop", [](Config c) { return is_one_of(c, {"rmsprop"}); }};
const Needs own_rate{"no scheduler but WarmupCosineLR", [](Config c) {
                       return c.schedule.type.empty() || c.schedule.type == "WarmupCosineLR";
                     }};
const Needs warmup{"scheduler.type", [](Config c) { return !c.schedule.type.empty(); }};
const Needs warmup_rate{"scheduler.type WarmupLR or WarmupDecayLR", [](Config c) {
                          return warmup.met(c) && c.schedule.type != "WarmupCosineLR";
                        }};
const Needs decay{"scheduler.type WarmupDecayLR or WarmupCosineLR",
                  [](Config c) { return warmup.met(c) && c.schedule.type != "WarmupLR"; }};
const Needs cosine{"scheduler.type WarmupCosineLR",
                   [](Config c) { return c.schedule.type == "WarmupCosineLR"; }};
const Needs megatrons{"--lr-decay-iters or --train-iters, and no scheduler.type",
                      [](Config c) { return c.schedule.is_megatrons(); }};
const Needs no_type{"no scheduler.type", [](Config c) { return c.schedule.type.empty(); }};
const Needs no_decay_iters{"neither --lr-decay-iters nor scheduler.type", [](Config c) {
                             return c.schedule.type.empty() && !c.schedule.lr_decay_iters;
                           }};
const Needs tp{"--tensor-model-parallel-size above 1", [](Config c) { return c.degrees.tp > 1; }};
const Needs overlap{"--tp-comm-overlap and --tensor-model-parallel-size above 1",
                    [](Config c) { return c.activations.tp_comm.enabled && c.degrees.tp > 1; }};
const Needs overlap_of_rows{"--tp-comm-overlap and --sequence-parallel", [](Config c) {
                              return overlap.met(c) && c.activations.sequence_parallel;
                            }};
const Needs cp{"--context-parallel-size above 1", [](Config c) { return c.degrees.cp > 1; }};
const Needs experts{"--num-experts", [](Config c) { return c.model.has_experts(); }};
const Needs hybrid{"--cp-comm-type a2a+p2p", [](Config c) { return c.context.is_hybrid(); }};
const Needs pp{"--pipeline-model-parallel-size above 1", [](Config c) { return c.degrees.pp > 1; }};
bool is_full(Config c) {
  return c.activations.recompute_granularity == layers::RecomputeGranularity::full;
}
const Needs full{"--recompute-granularity full", is_full};
const Needs full_over_tp{"--recompute-granularity full and --tensor-model-parallel-size above 1",
                         [](Config c) { return is_full(c) && c.degrees.tp > 1; }};

Key algorithms(std::string_view name, FieldOf field, std::string_view about) {
  Key key = axis(name, "", field, about);
  key.unset = "default";
  key.divide = collectives::divide_algorithm_texts;
  return key;
}

Key frozen() {
  Key key = axis("freeze", "", AT(frozen), "names of parameters that are not trained: a*+b*");
  key.unset = "none";
  return key;
}

}  // namespace

std::vector<Key> step_keys() {
  return {
      axis("dtype", "", AT(precision.dtype), "dtype of values and activations",
           {.choices = {"float", "bfloat16", "half", "double"},
            .synonyms = {{"float32", "float"}, {"float16", "half"}, {"float64", "double"}}}),
      axis("transport", "", AT(transport), "transport of all groups"),
      algorithms("tp-algorithm", AT(algorithms.tp), "collectives of tp"),
      algorithms("dp-algorithm", AT(algorithms.dp), "collectives of dp"),
      algorithms("embedding-algorithm", AT(algorithms.embedding),
                 "collectives between stages that hold the same parameters"),
      axis("schedule", "", AT(pipeline.schedule), "schedule of the pipeline",
           {.choices = pipeline::schedule_names()}),
      {.megatron = "--num-virtual-stages-per-pipeline-rank",
       .axis = "num-virtual-stages-per-pipeline-rank",
       .field = AT(pipeline.virtual_stages),
       .limits = degree(),
       .unset = "schedule",
       .about = "chunks of a stage; schedule: the schedule's default"},
      row("--num-layers-per-virtual-pipeline-stage", "", AT(pipeline.layers_per_virtual_stage),
          degree(), &pp),
      axis("--overlap-p2p-communication", "", AT(pipeline.p2p_overlap),
           "messages between stages are received beside computing", {}, &pp),
      axis("partition-method", "pipeline.partition", AT(pipeline.partition_method),
           "split of the layers into a pipeline's parts",
           {.choices = {"uniform", "parameters", "profile"}, .synonyms = {{"best", "uniform"}}}),
      axis("--zero-stage", "zero_optimization.stage", AT(zero.stage), "0 to 3", {.most = 3}),
      axis("--optimizer", "optimizer.type", AT(optimizer.type), "rule of the update",
           {.choices = {"adamw", "sgd", "rmsprop", "lion", "lamb", "muon", "adafactor",
                        "one_bit_adam", "one_bit_lamb", "adamw_8bit"},
            .synonyms = {{"Adam", "adamw"},
                         {"FusedLamb", "lamb"},
                         {"dist_muon", "muon"},
                         {"OneBitAdam", "one_bit_adam"},
                         {"OneBitLamb", "one_bit_lamb"},
                         {"AdamW8bit", "adamw_8bit"},
                         {"adamw_bnb_8bit", "adamw_8bit"}},
            .refused = {{"ZeroOneAdam", one_bit},
                        {"Adam8bit", eight_bits},
                        {"paged_adamw_8bit", eight_bits},
                        {"lion_8bit", eight_bits}}}),
      axis("offload_optimizer", "zero_optimization.offload_optimizer.device",
           AT(zero.options.offload_optimizer.device), "storage of the optimizer's states",
           {.choices = {"none", "cpu", "nvme"}}),
      axis("offload_param", "zero_optimization.offload_param.device",
           AT(zero.options.offload_param.device), "storage of unused values, in ZeRO stage 3",
           {.choices = {"none", "cpu", "nvme"}}),
      axis("--tensor-model-parallel-size", "tensor_parallel.autotp_size", AT(degrees.tp),
           "degree of tensor parallelism", degree()),
      axis("--pipeline-model-parallel-size", "pipeline.stages", AT(degrees.pp), "pipeline stages",
           degree()),
      axis("data-parallel-size", "", AT(degrees.dp), "replicas, over which ZeRO shards", degree()),
      axis("--context-parallel-size", "", AT(degrees.cp),
           "ranks that split every sequence; requires use-flash-attn", degree()),
      axis("--cp-comm-type", "", AT(context.comm_type), "algorithm of attention over cp",
           {.choices = {"p2p", "all_gather", "a2a", "a2a+p2p"},
            .synonyms = {{"allgather", "all_gather"}}},
           &cp),
      axis("cp-a2a-size", "", AT(context.a2a_size),
           "ranks of an all-to-all of cp-comm-type a2a+p2p", {.least = 2, .most = 1e5}, &hybrid),
      axis("cp-placement", "", AT(context.order), "positions of a sequence on the ranks of cp",
           {.choices = {"contiguous", "striped", "zigzag"}}, &cp),
      axis("--expert-model-parallel-size", "", AT(expert_parallel),
           "groups of etp ranks that divide the experts", degree()),
      {.megatron = "--expert-tensor-parallel-size",
       .axis = "expert-tensor-parallel-size",
       .field = AT(expert_tensor_parallel),
       .limits = degree(),
       .needs = &experts,
       .unset = "tp",
       .about = "ranks that split an expert (etp); tp: as many as tp has"},
      row("", "sequence_parallel_size", AT(sequence_parallel_size), degree()),
      row("", "tensor_parallel.enabled", AT(tensor_parallel)),
      axis("--micro-batch-size", "train_micro_batch_size_per_gpu", AT(batch.micro_batch_size),
           "sequences of one forward pass", {.least = 1, .most = 1e5}),
      axis("--global-batch-size", "train_batch_size", AT(batch.global_batch_size),
           "sequences of a step", {.least = 1, .most = 1e9}),
      row("", "gradient_accumulation_steps", AT(batch.gradient_accumulation_steps),
          {.least = 1, .most = 1e7}),
      axis("--sequence-parallel", "", AT(activations.sequence_parallel),
           "tokens sharded over tp between the tensor-parallel regions", {}, &tp),
      axis("--tp-comm-overlap", "tensor_parallel.tp_overlap_comm", AT(activations.tp_comm.enabled),
           "communication of tp beside matrix products", {}, &tp),
      row("--tp-comm-overlap-ag", "", AT(activations.tp_comm.split_ag), {}, &overlap_of_rows),
      row("--tp-comm-overlap-rs", "", AT(activations.tp_comm.split_rs), {}, &overlap_of_rows),
      row("--tp-comm-bulk-dgrad", "", AT(activations.tp_comm.bulk_dgrad), {}, &overlap_of_rows),
      row("--tp-comm-bulk-wgrad", "", AT(activations.tp_comm.bulk_wgrad), {}, &overlap),
      row("--tp-comm-overlap-rs-dgrad", "", AT(activations.tp_comm.rs_dgrad), {}, &overlap_of_rows),
      axis("--recompute-granularity", "", AT(activations.recompute_granularity),
           "activations that backward recomputes", {.choices = {"none", "selective", "full"}}),
      axis("--recompute-method", "", AT(activations.recompute_method),
           "choice of layers in full recomputation", {.choices = {"uniform", "block"}}, &full),
      axis("--recompute-num-layers", "", AT(activations.recompute_num_layers),
           "uniform: layers per group; block: recomputed first layers", degree(), &full),
      axis("--distribute-saved-activations", "activation_checkpointing.partition_activations",
           AT(activations.distribute_saved_activations), "shard checkpoints over tp", {},
           &full_over_tp),
      axis("cpu-checkpointing", "activation_checkpointing.cpu_checkpointing",
           AT(activations.cpu_checkpointing), "keep checkpoints in host memory", {}, &full),
      axis("--use-flash-attn", "", AT(activations.use_flash_attn), "blockwise attention"),
      axis("fused-epilogues", "", AT(activations.fused_epilogues),
           "bias and GELU inside cuBLASLt's products, on a GPU"),
      axis("--fp8-format", "", AT(fp8.format), "8-bit format of the blocks' matrix products",
           {.choices = {"none", "hybrid", "e4m3"}}),
      axis("--fp8-recipe", "", AT(fp8.recipe), "choice of the scales of 8-bit products",
           {.choices = {"delayed", "tensorwise", "blockwise", "mxfp8"}}, &in_8_bits),
      row("--fp8-margin", "", AT(fp8.margin), {.least = -100, .most = 100}, &delayed_scaling),
      row("--fp8-amax-history-len", "", AT(fp8.amax_history_len), {.least = 1, .most = 1048576},
          &delayed_scaling),
      row("--fp8-amax-compute-algo", "", AT(fp8.algorithm), {.choices = {"most_recent", "max"}},
          &delayed_scaling),
      axis("uneven-tokens", "", AT(uneven_tokens),
           "only a part of each sequence counts for the loss"),
      frozen(),

      row("--lr", "optimizer.params.lr", AT(optimizer.learning_rate), {.most = 1e6}, &own_rate),
      row("", "optimizer.params.betas", AT(optimizer.betas), {.most = below_one}, &with_betas),
      row("--adam-beta1", "", AT(optimizer.betas[0]), {.most = below_one}, &with_betas),
      row("--adam-beta2", "", AT(optimizer.betas[1]), {.most = below_one}, &with_betas),
      row("--adam-eps", "optimizer.params.eps", AT(optimizer.epsilon), {.least = tiny, .most = 1},
          &with_epsilon),
      row("--weight-decay", "optimizer.params.weight_decay", AT(optimizer.weight_decay),
          {.most = 1e6}),
      row("", "optimizer.params.adam_w_mode", AT(optimizer.decoupled_decay), {}, &adamw),
      row("--sgd-momentum", "optimizer.params.momentum", AT(optimizer.momentum),
          {.most = below_one}, &with_momentum),
      row("--muon-nesterov", "", AT(optimizer.muon.nesterov), {}, &muon),
      row("--muon-split-qkv", "", AT(optimizer.muon.split_qkv), {}, &muon),
      row("--muon-num-ns-steps", "", AT(optimizer.muon.num_ns_steps), {.least = 1, .most = 100},
          &muon),
      row("--muon-coefficient-type", "", AT(optimizer.muon.coefficient_type),
          {.choices = {"quintic", "simple"}}, &muon),
      row("--muon-scale-mode", "", AT(optimizer.muon.scale_mode),
          {.choices = {"spectral", "unit_rms_norm", "shape_scaling"}}, &muon),
      row("--muon-extra-scale-factor", "", AT(optimizer.muon.extra_scale_factor),
          {.least = tiny, .most = 1e6}, &muon),
      row("--adafactor-decay-rate", "", AT(optimizer.decay_rate), {.least = tiny, .most = 10},
          &adafactor),
      row("--adafactor-clip-threshold", "optimizer.params.clip_threshold",
          AT(optimizer.clip_threshold), {.least = tiny, .most = 1e30}, &adafactor),
      row("--freeze-step", "optimizer.params.freeze_step", AT(optimizer.freeze_step),
          {.least = 1, .most = 1e9}, &one_bits),
      row("--min-8bit-size", "", AT(optimizer.min_8bit_size), {.least = 1, .most = 1e12},
          &adamw_8bit),
      row("", "optimizer.params.alpha", AT(optimizer.smoothing), {.most = below_one}, &rmsprop),
      row("", "optimizer.params.max_coeff", AT(optimizer.max_coeff), {.least = tiny, .most = 1e30},
          &lamb),
      row("", "optimizer.params.min_coeff", AT(optimizer.min_coeff), {.least = tiny, .most = 1e30},
          &lamb),
      row("--one-bit-coeff-beta", "optimizer.params.coeff_beta", AT(optimizer.coeff_beta),
          {.most = below_one}, &one_bit_lamb),
      row("--one-bit-factor-max", "optimizer.params.factor_max", AT(optimizer.factor_max),
          {.least = tiny, .most = 1e30}, &one_bit_lamb),
      row("--one-bit-factor-min", "optimizer.params.factor_min", AT(optimizer.factor_min),
          {.least = tiny, .most = 1e30}, &one_bit_lamb),
      row("--one-bit-factor-threshold", "optimizer.params.factor_threshold",
          AT(optimizer.factor_threshold), {.least = tiny, .most = 1e30}, &one_bit_lamb),
      {.megatron = "--clip-grad",
       .deepspeed = "gradient_clipping",
       .field = AT(optimizer.clipping),
       .limits = {.most = 1e30},
       .since = "1.0 since 2026-06-23 (DeepSpeed pull request 8068); 0, which is off, before"},

      row("", "scheduler.type", AT(schedule.type),
          {.choices = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"}}),
      row("", "scheduler.params.warmup_min_lr", AT(schedule.warmup_min_lr), {.most = 1e6},
          &warmup_rate),
      row("", "scheduler.params.warmup_max_lr", AT(schedule.warmup_max_lr), {.most = 1e6},
          &warmup_rate),
      row("", "scheduler.params.warmup_num_steps", AT(schedule.warmup_num_steps), {}, &warmup),
      row("", "scheduler.params.warmup_type", AT(schedule.warmup_type),
          {.choices = {"log", "linear"}}, &warmup),
      row("", "scheduler.params.total_num_steps", AT(schedule.total_num_steps), {.least = 1},
          &decay),
      row("", "scheduler.params.warmup_min_ratio", AT(schedule.warmup_min_ratio), {.most = 1},
          &cosine),
      row("", "scheduler.params.cos_min_ratio", AT(schedule.cos_min_ratio), {.most = 1}, &cosine),
      row("--train-iters", "", AT(schedule.train_iters), {.least = 1}, &no_decay_iters),
      row("--lr-decay-iters", "", AT(schedule.lr_decay_iters), {.least = 1}, &no_type),
      row("--lr-warmup-iters", "", AT(schedule.lr_warmup_iters), {}, &no_type),
      row("--min-lr", "", AT(schedule.min_lr), {.most = 1e6}, &megatrons),
      row("--lr-decay-style", "", AT(schedule.lr_decay_style),
          {.choices = {"constant", "linear", "cosine", "inverse-square-root"}}, &megatrons),

      row("--loss-scale", "fp16.loss_scale", AT(precision.constant_loss_scale), {.most = 1e30},
          &half),
      row("", "fp16.initial_scale_power", AT(precision.initial_scale_power), {.most = 100},
          &dynamic),
      row("--initial-loss-scale", "", AT(precision.loss_scale.initial_scale),
          {.least = tiny, .most = 1e30}, &dynamic),
      row("--loss-scale-window", "fp16.loss_scale_window", AT(precision.loss_scale.window),
          {.least = 1}, &dynamic),
      row("--hysteresis", "fp16.hysteresis", AT(precision.loss_scale.hysteresis),
          {.least = 1, .most = 1e9}, &dynamic),
      row("", "fp16.consecutive_hysteresis", AT(precision.loss_scale.consecutive_hysteresis), {},
          &dynamic),
      row("--min-loss-scale", "fp16.min_loss_scale", AT(precision.loss_scale.min_scale),
          {.least = tiny, .most = 1e30}, &dynamic),
      row("--seed", "", AT(seed), {.most = 9.3e18}),
  };
}

}  // namespace suite::configuration
