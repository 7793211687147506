// Keys of a step: precision, pipeline, degrees, batch, optimizer, activations. Case names list the
// axes in this order.

#include <algorithm>
#include <initializer_list>

#include "collectives/communicator/group_algorithms.h"
#include "harness/unit/sweep.h"
#include "pipeline/schedule.h"
#include "suite/configuration/keys.h"

namespace suite::configuration {
namespace {

using namespace predicted;
using Config = const TrainingConfig&;

constexpr double below_one = 1 - 0x1p-53, tiny = 1e-300;
constexpr std::string_view one_bit =
    "of the 1-bit optimizers 1-bit Adam and 1-bit LAMB are implemented (one_bit_adam, "
    "one_bit_lamb)";
constexpr std::string_view eight_bits = "of the 8-bit optimizers AdamW is implemented (adamw_8bit)";
machine::Dtype dtype_of(const std::string& text) {
  return harness::AxisText<machine::Dtype>::parse("dtype", text);
}
machine::Transport transport_of(const std::string& text) {
  return harness::AxisText<machine::Transport>::parse("transport", text);
}
zero::OffloadDevice device_of(const std::string& text) { return zero::find_offload_device(text); }
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
const Needs own_rate{"no scheduler except WarmupCosineLR", [](Config c) {
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
const Needs megatrons_warmup{"--lr-warmup-iters, and no scheduler.type", [](Config c) {
                               return c.schedule.is_megatrons() && c.schedule.lr_warmup_iters;
                             }};
const Needs no_type{"no scheduler.type", [](Config c) { return c.schedule.type.empty(); }};
const Needs no_decay_iters{"no --lr-decay-iters and no scheduler.type", [](Config c) {
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
const Needs fpdt{"--ds-sequence-parallel-fpdt", [](Config c) { return c.context.fpdt; }};
const Needs pp{"--pipeline-model-parallel-size above 1", [](Config c) { return c.degrees.pp > 1; }};
bool is_full(Config c) {
  return c.activations.recompute_granularity == layers::RecomputeGranularity::full;
}
const Needs full{"--recompute-granularity full", is_full};
const Needs contiguous{"activation_checkpointing.contiguous_memory_optimization", [](Config c) {
                         return full.met(c) && c.activations.contiguous_memory_optimization;
                       }};
const Needs full_over_tp{"--recompute-granularity full and --tensor-model-parallel-size above 1",
                         [](Config c) { return is_full(c) && c.degrees.tp > 1; }};

constexpr Predicted
    degrees = counted("degrees and batch"),
    contexts = counted("by layers/context_parallel/context_cost.h"),
    grids = rejected("products and messages of tp are those of one dimension"),
    during_products = counted(
        "communication of tp during matrix products, unless the software overlaps it by default"),
    simulated = counted("the simulated pipeline"),
    update = counted(
        "bytes of the update's kernels, operations of Newton-Schulz, messages, memory; a 1-bit "
        "optimizer after its freeze_step, and before it"),
    recomputed = counted("the second forward, its messages, copies of checkpoints, memory"),
    fused = counted("bytes of kernels, memory"),
    codes = counted("rate gpu.fp8_tflops, codes and scales of operands, their messages, memory");

Key algorithms(std::string_view name, FieldOf field, std::string_view about) {
  Key key = axis(name, "", field, rejected("the fastest of the usual algorithms runs"), about,
                 {.example = "tree"});
  key.unset = "default";
  key.divide = collectives::divide_algorithm_texts;
  return key;
}

Word::Values to_cpu() { return {{"true", "cpu"}, {"false", "none"}}; }

Key expert_tensor() {
  Key key = axis("--expert-tensor-parallel-size", "", AT(expert_tensor_parallel), of_experts,
                 "ranks that split an expert (etp); tp: as many as tp has", degree(), &experts);
  key.unset = "tp";
  return key;
}

// What a capture does not allow: the host takes part, or launches differ.
Key graph() {
  using zero::OffloadDevice;
  return axis("graph", "", AT(graph),
              unaffected("the host's time for starting kernels is not predicted"),
              "forward, backward and sums of gradients as one CUDA graph")
      .also({.from = "--cuda-graph-scope", .values = {{"full_iteration", "true"}}})
      .demanding({"transport nccl, because the host takes part in each message of the others",
                  [](Config c) { return c.transport == machine::Transport::nccl; }})
      .demanding(
          {"hidden-dropout 0 and attention-dropout 0, because dropout differs between steps",
           [](Config c) { return c.model.hidden_dropout == 0 && c.model.attention_dropout == 0; }})
      .demanding({"a model without num-experts, because the host divides rows among experts",
                  [](Config c) { return !c.model.has_experts(); }})
      .demanding({"cpu-checkpointing off, because the host waits for the copies",
                  [](Config c) { return !c.activations.cpu_checkpointing; }})
      .demanding({"ds-sequence-parallel-fpdt-offloading off, because the host waits for the copies",
                  [](Config c) { return !c.context.fpdt || !c.context.fpdt_offloading; }})
      .demanding(
          {"offload_param none, because the host copies the values",
           [](Config c) { return c.zero.options.offload_param.device == OffloadDevice::none; }})
      .demanding(
          {"contiguous_gradients in ZeRO stage 2 and 3, because the host waits for copies of "
           "single gradients",
           [](Config c) { return c.zero.stage < 2 || c.zero.options.contiguous_gradients; }})
      .demanding({"gradient-compression none and no 1-bit optimizer, because the host reads codes "
                  "or steps differ",
                  [](Config c) {
                    return c.zero.options.gradient_compression.algorithm.empty() &&
                           !c.optimizer.is_one_bit();
                  }});
}

Key frozen() {
  Key key = axis("freeze", "", AT(frozen),
                 counted("gradients, their messages and states; MFU counts all parameters"),
                 "names of parameters that are not trained: a*+b*", {.example = "blocks.*"});
  key.unset = "none";
  return key;
}

}  // namespace

std::vector<Key> step_keys() {
  return {
      axis("dtype", "", NAMED(precision.dtype, dtype_of),
           counted("rates and bytes; double is rejected"), "dtype of values and activations",
           {.choices = {"float", "bfloat16", "half", "double"},
            .synonyms = {{"float32", "float"}, {"float16", "half"}, {"float64", "double"}}})
          .also(selecting("half", "fp16.enabled"))
          .also(selecting("bfloat16", "bf16.enabled"))
          .also(selecting("half", "--fp16"))
          .also(selecting("bfloat16", "--bf16")),
      axis("transport", "", NAMED(transport, transport_of), cluster_rates,
           "transport of all groups", {.example = "mpi"}),
      algorithms("tp-algorithm", AT(algorithms.tp), "collectives of tp"),
      algorithms("dp-algorithm", AT(algorithms.dp), "collectives of dp"),
      algorithms("embedding-algorithm", AT(algorithms.embedding),
                 "collectives between stages that hold the same parameters"),
      axis("schedule", "", AT(pipeline.schedule), simulated, "schedule of the pipeline",
           {.choices = pipeline::schedule_names()}),
      {.megatron = "--num-virtual-stages-per-pipeline-rank",
       .axis = "num-virtual-stages-per-pipeline-rank",
       .field = AT(pipeline.virtual_stages),
       .predicted = simulated,
       .limits = degree(),
       .unset = "schedule",
       .about = "chunks of a stage; schedule: the schedule's default"},
      row("--num-layers-per-virtual-pipeline-stage", "", AT(pipeline.layers_per_virtual_stage),
          resolved, degree(), &pp),
      axis("--overlap-p2p-communication", "", AT(pipeline.p2p_overlap),
           unaffected("--software selects whether messages between stages are hidden"),
           "messages between stages are received during computing", {}, &pp)
          .also(selecting("false", "--no-overlap-p2p-communication"))
          .demanding({"transport shared_memory, mpi or cuda_ipc, because over nccl messages move "
                      "in groups between actions",
                      [](Config c) { return c.transport != machine::Transport::nccl; }}),
      axis("partition-method", "pipeline.partition", AT(pipeline.partition_method),
           rejected("layers are divided uniformly"), "split of the layers into a pipeline's parts",
           {.choices = {"uniform", "parameters", "profile"}, .synonyms = {{"best", "uniform"}}}),
      axis("--zero-stage", "zero_optimization.stage", AT(zero.stage),
           counted("volumes of zero/cost/cost.h, memory"), "0 to 3", {.most = 3})
          .also(selecting("1", "--use-distributed-optimizer"))
          .also({.from = "--data-parallel-sharding-strategy",
                 .values = {{"no_shard", "0"},
                            {"optim", "1"},
                            {"optim_grads", "2"},
                            {"optim_grads_params", "3"}}}),
      axis("--optimizer", "optimizer.type", AT(optimizer.type), update, "rule of the update",
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
           NAMED(zero.options.offload_optimizer.device, device_of), offloaded,
           "storage of the optimizer's states", {.choices = {"none", "cpu", "nvme"}})
          .also(older("zero_optimization.cpu_offload", to_cpu()))
          .also(selecting("cpu", "--optimizer-cpu-offload")),
      axis("offload_param", "zero_optimization.offload_param.device",
           NAMED(zero.options.offload_param.device, device_of), offloaded,
           "storage of values while they are not used; ZeRO stage 3",
           {.choices = {"none", "cpu", "nvme"}})
          .also(older("zero_optimization.cpu_offload_param", to_cpu()))
          .also(older("zero_optimization.cpu_offload_params", to_cpu())),
      axis("--tensor-model-parallel-size", "tensor_parallel.autotp_size", AT(degrees.tp), degrees,
           "degree of tensor parallelism", degree())
          .also({"tensor_parallel.tp_size"})
          .also({"tensor_parallel.tp.tp_size"})
          .also({"--tp"}),
      axis("--tensor-parallel-mode", "", NAMED(tensor_grid.mode, layers::tensor_parallel_mode),
           grids, "dimensions of the grid of tp's ranks", {.choices = {"1d", "2d", "2.5d", "3d"}},
           &tp),
      axis("--tensor-parallel-depth", "", AT(tensor_grid.depth), grids, "layers of a 2.5d grid",
           degree()),
      axis("--tensor-parallel-product", "", NAMED(tensor_grid.product, layers::grid_method), grids,
           "algorithm of matrix products on a 2d grid", {.choices = {"summa", "cannon"}}),
      axis("--pipeline-model-parallel-size", "pipeline.stages", AT(degrees.pp), degrees,
           "pipeline stages", degree())
          .also({"--pp"}),
      axis("data-parallel-size", "", AT(degrees.dp), degrees, "replicas, over which ZeRO shards",
           degree()),
      axis("--context-parallel-size", "", AT(degrees.cp), degrees,
           "ranks that split every sequence; requires use-flash-attn", degree())
          .also({"--cp"}),
      axis("--cp-comm-type", "", NAMED(context.comm_type, layers::cp_comm_type), contexts,
           "algorithm of attention over cp",
           {.choices = {"p2p", "all_gather", "a2a", "a2a+p2p"},
            .synonyms = {{"allgather", "all_gather"}}},
           &cp),
      axis("cp-a2a-size", "", AT(context.a2a_size), contexts,
           "ranks of an all-to-all of cp-comm-type a2a+p2p", {.least = 2, .most = 1e5}, &hybrid),
      axis("cp-placement", "", NAMED(context.order, layers::sequence_order),
           unaffected("all ranks of cp have equal work"),
           "positions of a sequence on the ranks of cp",
           {.choices = {"contiguous", "striped", "zigzag"}}, &cp),
      axis("--expert-model-parallel-size", "", AT(expert_parallel), of_experts,
           "groups of etp ranks that divide the experts", degree()),
      expert_tensor(),
      axis("--ds-sequence-parallel-fpdt", "", AT(context.fpdt), contexts,
           "FPDT: a2a for one chunk of the sequence after another", {}, &cp),
      axis("--ds-sequence-parallel-fpdt-chunk-size", "", AT(context.fpdt_chunk_size), contexts,
           "positions of a chunk of FPDT", {.least = 1, .most = 1e9}, &fpdt),
      axis("--ds-sequence-parallel-fpdt-offloading", "", AT(context.fpdt_offloading),
           counted("copies of chunks during attention, memory"),
           "FPDT's chunks wait in host memory", {}, &fpdt),
      row("--ds-sequence-parallel-size", "sequence_parallel_size", AT(sequence_parallel_size),
          resolved, degree()),
      row("", "tensor_parallel.enabled", AT(tensor_parallel), resolved),
      axis("--micro-batch-size", "train_micro_batch_size_per_gpu", AT(batch.micro_batch_size),
           degrees, "sequences of one forward pass", {.least = 1, .most = 1e5}),
      axis("--global-batch-size", "train_batch_size", AT(batch.global_batch_size), degrees,
           "sequences of a step", {.least = 1, .most = 1e9}),
      row("", "gradient_accumulation_steps", AT(batch.gradient_accumulation_steps), resolved,
          {.least = 1, .most = 1e7}),
      axis("--sequence-parallel", "", AT(activations.sequence_parallel), degrees,
           "tokens sharded over tp between the tensor-parallel regions", {}, &tp),
      axis("--tp-comm-overlap", "tensor_parallel.tp_overlap_comm", AT(activations.tp_comm.enabled),
           during_products, "communication of tp during matrix products", {}, &tp),
      row("--tp-comm-overlap-ag", "", AT(activations.tp_comm.split_ag), during_products, {},
          &overlap_of_rows)
          .also(selecting("false", "--disable-tp-comm-overlap-ag"))
          .also(older("--tp-comm-split-ag")),
      row("--tp-comm-overlap-rs", "", AT(activations.tp_comm.split_rs), during_products, {},
          &overlap_of_rows)
          .also(selecting("false", "--disable-tp-comm-overlap-rs"))
          .also(older("--tp-comm-split-rs")),
      row("--tp-comm-bulk-dgrad", "", AT(activations.tp_comm.bulk_dgrad), during_products, {},
          &overlap_of_rows)
          .also(selecting("false", "--disable-tp-comm-bulk-dgrad")),
      row("--tp-comm-bulk-wgrad", "", AT(activations.tp_comm.bulk_wgrad), during_products, {},
          &overlap)
          .also(selecting("false", "--disable-tp-comm-bulk-wgrad")),
      row("--tp-comm-overlap-rs-dgrad", "", AT(activations.tp_comm.rs_dgrad), during_products, {},
          &overlap_of_rows),
      axis("--recompute-granularity", "",
           NAMED(activations.recompute_granularity, layers::recompute_granularity), recomputed,
           "activations that backward recomputes", {.choices = {"none", "selective", "full"}})
          .also(selecting("selective", "--recompute-activations"))
          .also(older("--checkpoint-activations", {{"true", "full"}})),
      axis("--recompute-method", "", NAMED(activations.recompute_method, layers::recompute_method),
           recomputed, "choice of layers in full recomputation", {.choices = {"uniform", "block"}},
           &full),
      axis("--recompute-num-layers", "", AT(activations.recompute_num_layers), recomputed,
           "uniform: layers per group; block: recomputed first layers", degree(), &full)
          .also(older("--checkpoint-num-layers")),
      axis("--distribute-saved-activations", "activation_checkpointing.partition_activations",
           AT(activations.distribute_saved_activations), recomputed, "shard checkpoints over tp",
           {}, &full_over_tp)
          .also({"--partition-activations"}),
      axis("cpu-checkpointing", "activation_checkpointing.cpu_checkpointing",
           AT(activations.cpu_checkpointing), recomputed, "keep checkpoints in host memory", {},
           &full)
          .also({"--checkpoint-in-cpu"}),
      axis("contiguous-checkpoints", "activation_checkpointing.contiguous_memory_optimization",
           AT(activations.contiguous_memory_optimization),
           unaffected("the checkpoints of a stage take as many bytes"),
           "keep the checkpoints of a micro-batch in one allocation", {}, &full)
          .also({"--contigious-checkpointing"}),
      axis("number-checkpoints", "activation_checkpointing.number_checkpoints",
           AT(activations.number_checkpoints),
           unaffected("the checkpoints of a stage take as many bytes"),
           "checkpoints for which that allocation has room; 0: those of a stage",
           {.least = 0, .most = 1e6}, &contiguous),
      axis("--use-flash-attn", "", AT(activations.use_flash_attn), fused, "blockwise attention")
          .also({"--use-flash-attn-v2"}),
      axis("fused-epilogues", "", AT(activations.fused_epilogues), fused,
           "bias and GELU inside cuBLASLt's products, on a GPU"),
      axis("--fp8-format", "", NAMED(fp8.format, layers::fp8_format), codes,
           "8-bit format of the blocks' matrix products", {.choices = {"none", "hybrid", "e4m3"}}),
      axis("--fp8-recipe", "", NAMED(fp8.recipe, layers::fp8_recipe), codes,
           "choice of the scales of 8-bit products",
           {.choices = {"delayed", "tensorwise", "blockwise", "mxfp8"}}, &in_8_bits),
      row("--fp8-margin", "", AT(fp8.margin), numbers, {.least = -100, .most = 100},
          &delayed_scaling),
      row("--fp8-amax-history-len", "", AT(fp8.amax_history_len), counted("memory"),
          {.least = 1, .most = 1048576}, &delayed_scaling),
      row("--fp8-amax-compute-algo", "", NAMED(fp8.algorithm, layers::amax_algorithm), numbers,
          {.choices = {"most_recent", "max"}}, &delayed_scaling),
      graph(),
      axis("uneven-tokens", "", AT(uneven_tokens),
           counted("the number of tokens that count, which declared steps sum over dp"),
           "only a part of each sequence counts for the loss"),
      frozen(),

      row("--lr", "optimizer.params.lr", AT(optimizer.learning_rate), numbers, {.most = 1e6},
          &own_rate),
      row("", "optimizer.params.betas", AT(optimizer.betas), numbers, {.most = below_one},
          &with_betas),
      row("--adam-beta1", "", AT(optimizer.betas[0]), numbers, {.most = below_one}, &with_betas),
      row("--adam-beta2", "", AT(optimizer.betas[1]), numbers, {.most = below_one}, &with_betas),
      row("--adam-eps", "optimizer.params.eps", AT(optimizer.epsilon), numbers,
          {.least = tiny, .most = 1}, &with_epsilon),
      row("--weight-decay", "optimizer.params.weight_decay", AT(optimizer.weight_decay), update,
          {.most = 1e6}),
      row("", "optimizer.params.adam_w_mode", AT(optimizer.decoupled_decay), numbers, {}, &adamw),
      row("--sgd-momentum", "optimizer.params.momentum", AT(optimizer.momentum), update,
          {.most = below_one}, &with_momentum)
          .also({"--muon-momentum"}),
      row("--muon-nesterov", "", AT(optimizer.muon.nesterov), update, {}, &muon)
          .also({"--muon-use-nesterov"}),
      row("--muon-split-qkv", "", AT(optimizer.muon.split_qkv), update, {}, &muon)
          .also(selecting("false", "--muon-no-split-qkv")),
      row("--muon-num-ns-steps", "", AT(optimizer.muon.num_ns_steps), update,
          {.least = 1, .most = 100}, &muon),
      row("--muon-coefficient-type", "", AT(optimizer.muon.coefficient_type), numbers,
          {.choices = {"quintic", "simple"}}, &muon),
      row("--muon-scale-mode", "", AT(optimizer.muon.scale_mode), numbers,
          {.choices = {"spectral", "unit_rms_norm", "shape_scaling"}}, &muon),
      row("--muon-extra-scale-factor", "", AT(optimizer.muon.extra_scale_factor), numbers,
          {.least = tiny, .most = 1e6}, &muon),
      row("--adafactor-decay-rate", "", AT(optimizer.decay_rate), numbers,
          {.least = tiny, .most = 10}, &adafactor),
      row("--adafactor-clip-threshold", "optimizer.params.clip_threshold",
          AT(optimizer.clip_threshold), numbers, {.least = tiny, .most = 1e30}, &adafactor),
      row("--freeze-step", "optimizer.params.freeze_step", AT(optimizer.freeze_step), numbers,
          {.least = 1, .most = 1e9}, &one_bits),
      row("--min-8bit-size", "", AT(optimizer.min_8bit_size),
          unaffected("all parameters of adamw_8bit count as codes"), {.least = 1, .most = 1e12},
          &adamw_8bit),
      row("", "optimizer.params.alpha", AT(optimizer.smoothing), numbers, {.most = below_one},
          &rmsprop),
      row("", "optimizer.params.max_coeff", AT(optimizer.max_coeff), numbers,
          {.least = tiny, .most = 1e30}, &lamb),
      row("", "optimizer.params.min_coeff", AT(optimizer.min_coeff), numbers,
          {.least = tiny, .most = 1e30}, &lamb),
      row("--one-bit-coeff-beta", "optimizer.params.coeff_beta", AT(optimizer.coeff_beta), numbers,
          {.most = below_one}, &one_bit_lamb),
      row("--one-bit-factor-max", "optimizer.params.factor_max", AT(optimizer.factor_max), numbers,
          {.least = tiny, .most = 1e30}, &one_bit_lamb),
      row("--one-bit-factor-min", "optimizer.params.factor_min", AT(optimizer.factor_min), numbers,
          {.least = tiny, .most = 1e30}, &one_bit_lamb),
      row("--one-bit-factor-threshold", "optimizer.params.factor_threshold",
          AT(optimizer.factor_threshold), numbers, {.least = tiny, .most = 1e30}, &one_bit_lamb),
      {.megatron = "--clip-grad",
       .deepspeed = "gradient_clipping",
       .field = AT(optimizer.clipping),
       .predicted = numbers,
       .limits = {.most = 1e30},
       .since = "1.0 since 2026-06-23 (DeepSpeed pull request 8068); 0, which is off, before"},

      row("", "scheduler.type", AT(schedule.type), numbers,
          {.choices = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"}}),
      row("", "scheduler.params.warmup_min_lr", AT(schedule.warmup_min_lr), numbers, {.most = 1e6},
          &warmup_rate),
      row("", "scheduler.params.warmup_max_lr", AT(schedule.warmup_max_lr), numbers, {.most = 1e6},
          &warmup_rate),
      row("", "scheduler.params.warmup_num_steps", AT(schedule.warmup_num_steps), numbers, {},
          &warmup),
      row("", "scheduler.params.warmup_type", AT(schedule.warmup_type), numbers,
          {.choices = {"log", "linear"}}, &warmup),
      row("", "scheduler.params.total_num_steps", AT(schedule.total_num_steps), numbers,
          {.least = 1}, &decay),
      row("", "scheduler.params.warmup_min_ratio", AT(schedule.options.warmup_min_ratio), numbers,
          {.most = 1}, &cosine),
      row("", "scheduler.params.cos_min_ratio", AT(schedule.options.cos_min_ratio), numbers,
          {.most = 1}, &cosine),
      row("--train-iters", "", AT(schedule.train_iters), numbers, {.least = 1}, &no_decay_iters),
      row("--lr-decay-iters", "", AT(schedule.lr_decay_iters), numbers, {.least = 1}, &no_type),
      row("--lr-warmup-iters", "", AT(schedule.lr_warmup_iters), numbers, {}, &no_type),
      row("--lr-warmup-init", "", AT(schedule.options.lr_warmup_init), numbers, {.most = 1e6},
          &megatrons_warmup)
          .demanding({"a value of at most --lr",
                      [](Config c) {
                        return c.schedule.options.lr_warmup_init <= c.optimizer.learning_rate;
                      }}),
      row("--min-lr", "", AT(schedule.min_lr), numbers, {.most = 1e6}, &megatrons),
      row("--lr-decay-style", "", AT(schedule.lr_decay_style), numbers,
          {.choices = {"constant", "linear", "cosine", "inverse-square-root"}}, &megatrons),

      row("--loss-scale", "fp16.loss_scale", AT(precision.constant_loss_scale), numbers,
          {.most = 1e30}, &half),
      row("", "fp16.initial_scale_power", AT(precision.initial_scale_power), numbers, {.most = 100},
          &dynamic),
      row("--initial-loss-scale", "", AT(precision.loss_scale.initial_scale), numbers,
          {.least = tiny, .most = 1e30}, &dynamic),
      row("--loss-scale-window", "fp16.loss_scale_window", AT(precision.loss_scale.window), numbers,
          {.least = 1}, &dynamic),
      row("--hysteresis", "fp16.hysteresis", AT(precision.loss_scale.hysteresis), numbers,
          {.least = 1, .most = 1e9}, &dynamic),
      row("", "fp16.consecutive_hysteresis", AT(precision.loss_scale.consecutive_hysteresis),
          numbers, {}, &dynamic),
      row("--min-loss-scale", "fp16.min_loss_scale", AT(precision.loss_scale.min_scale), numbers,
          {.least = tiny, .most = 1e30}, &dynamic),
      row("--seed", "", AT(seed), numbers, {.most = 9.3e18}),
  };
}

}  // namespace suite::configuration
