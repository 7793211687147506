// Keys of ZeRO and of its offload: DeepSpeed's zero_optimization and aio.

#include "suite/configuration/keys.h"
#include "zero/stages/compressed_reduction.h"

namespace suite::configuration {
namespace {

using namespace predicted;
using Config = const TrainingConfig&;
using zero::OffloadDevice;

OffloadDevice states(Config c) { return c.zero.options.offload_optimizer.device; }
OffloadDevice values(Config c) { return c.zero.options.offload_param.device; }

const Needs sharded{"zero_optimization.stage 1 to 3", [](Config c) { return c.zero.stage >= 1; }};
const Needs stage_2{"zero_optimization.stage 2 or 3", [](Config c) { return c.zero.stage >= 2; }};
const Needs stage_3{"zero_optimization.stage 3", [](Config c) { return c.zero.stage == 3; }};
const Needs stage_1_or_2{"zero_optimization.stage 1 or 2",
                         [](Config c) { return c.zero.stage == 1 || c.zero.stage == 2; }};
const Needs postscales{"prescale_gradients false",
                       [](Config c) { return !c.zero.options.prescale_gradients; }};
const Needs in_bfloat16{"bf16.enabled",
                        [](Config c) { return c.precision.dtype == machine::Dtype::bfloat16; }};
const Needs states_on_cpu{"offload_optimizer.device cpu",
                          [](Config c) { return states(c) == OffloadDevice::cpu; }};
const Needs states_in_files{"offload_optimizer.device nvme",
                            [](Config c) { return states(c) == OffloadDevice::nvme; }};
const Needs states_away{"offload_optimizer.device cpu or nvme",
                        [](Config c) { return states(c) != OffloadDevice::none; }};
const Needs values_away{"offload_param.device cpu or nvme",
                        [](Config c) { return values(c) != OffloadDevice::none; }};
const Needs values_in_files{"offload_param.device nvme",
                            [](Config c) { return values(c) == OffloadDevice::nvme; }};
const Needs files{"offload to nvme",
                  [](Config c) { return states_in_files.met(c) || values_in_files.met(c); }};

const Needs with_top_k{"gradient-compression top_k", [](Config c) {
                         return c.zero.options.gradient_compression.algorithm == "top_k";
                       }};
const Needs with_deviation{"gradient-compression deviation", [](Config c) {
                             return c.zero.options.gradient_compression.algorithm == "deviation";
                           }};

constexpr Predicted over_dp = counted("bytes over dp"),
                    compressed = counted(
                        "bytes over dp, kernels with errors; values are normally distributed"),
                    plus_plus =
                        counted("bytes of each group, kernels that code and decode, memory"),
                    gathers = counted("gathers of the declared step"),
                    buckets = counted(
                        "memory; --software selects what is hidden, by layer and not by bucket");

Key of_gradients(std::string_view name, std::string_view deepspeed, FieldOf field,
                 std::string_view about) {
  Key key = axis(name, deepspeed, field, over_dp, about,
                 {.choices = {"fp16", "bf16", "fp32"},
                  .synonyms = {{"float16", "fp16"},
                               {"half", "fp16"},
                               {"bfloat16", "bf16"},
                               {"float32", "fp32"},
                               {"float", "fp32"}}});
  key.unset = "default";
  return key;
}

Key of_compression() {
  Key key =
      axis("gradient-compression", "", AT(zero.options.gradient_compression.algorithm), compressed,
           "compression of gradients over dp, with error feedback; ZeRO stage 0 or 1",
           {.choices = zero::gradient_compressions()});
  key.unset = "none";
  return key;
}

}  // namespace

std::vector<Key> zero_keys() {
  return {
      of_gradients("grad-accum-dtype", "data_types.grad_accum_dtype", AT(zero.grad_accum_dtype),
                   "dtype in which gradients are added up")
          .also(selecting("fp32", "--accumulate-allreduce-grads-in-fp32"))
          .also(selecting("bf16", "--grad-reduce-in-bf16")),
      of_gradients("communication-data-type", "communication_data_type",
                   AT(zero.communication_data_type), "dtype of gradients on the wire over dp"),
      of_compression(),
      axis("compression-density", "", AT(zero.options.gradient_compression.density), compressed,
           "fraction of the gradients that top_k sends", {.least = 1e-9, .most = 1}, &with_top_k),
      axis("compression-deviations", "", AT(zero.options.gradient_compression.deviations),
           compressed, "standard deviations of a gradient that deviation sends",
           {.least = 1e-9, .most = 1e3}, &with_deviation),
      row("", "zero_optimization.contiguous_gradients", AT(zero.options.contiguous_gradients),
          unaffected("--software selects what is fused"), {}, &stage_2),
      row("--ddp-bucket-size", "zero_optimization.reduce_bucket_size", AT(zero.reduce_bucket_size),
          buckets, {.least = 1}),
      row("", "zero_optimization.allgather_bucket_size", AT(zero.options.allgather_bucket_size),
          buckets, {.least = 1}, &sharded),
      {.megatron = "--overlap-grad-reduce",
       .deepspeed = "zero_optimization.overlap_comm",
       .field = AT(zero.overlap_comm),
       .predicted = buckets,
       .since = "none, which is true in stage 3 only; false in older releases",
       .words = {{"--overlap-param-gather"}}},
      row("", "zero_optimization.stage3_prefetch_bucket_size",
          AT(zero.options.stage3_prefetch_bucket_size), buckets, {}, &stage_3),
      row("", "zero_optimization.stage3_param_persistence_threshold",
          AT(zero.param_persistence_threshold), gathers, {}, &stage_3),
      row("", "zero_optimization.stage3_model_persistence_threshold",
          AT(zero.model_persistence_threshold), gathers, {.most = 0x1p63}, &stage_3),
      row("", "zero_optimization.stage3_max_reuse_distance",
          AT(zero.options.stage3_max_reuse_distance), gathers, {}, &stage_3),
      row("", "zero_optimization.zero_hpz_partition_size",
          AT(zero.options.plus_plus.hpz_partition_size), plus_plus, {}, &stage_3),
      axis("zero_quantized_weights", "zero_optimization.zero_quantized_weights",
           AT(zero.options.plus_plus.quantized_weights), plus_plus,
           "values are gathered over dp in 8 bits; ZeRO stage 3", {}, &stage_3),
      axis("zero_quantized_gradients", "zero_optimization.zero_quantized_gradients",
           AT(zero.options.plus_plus.quantized_gradients), plus_plus,
           "gradients are reduced over dp in 4 bits; ZeRO stage 3", {}, &stage_3),
      row("", "zero_optimization.reduce_scatter", AT(zero.options.reduce_scatters), over_dp, {},
          &stage_1_or_2),
      row("", "zero_optimization.allgather_partitions", AT(zero.options.all_gathers_values),
          over_dp, {}, &stage_1_or_2),
      row("", "prescale_gradients", AT(zero.options.prescale_gradients), numbers),
      row("", "gradient_predivide_factor", AT(zero.options.gradient_predivide_factor), numbers,
          {.least = 1e-30, .most = 1e30}, &postscales),
      row("", "bf16.check_grad_overflow", AT(zero.options.check_overflow), numbers, {},
          &in_bfloat16),
      row("", "zero_optimization.stage3_max_live_parameters",
          AT(zero.options.stage3_max_live_parameters), buckets, {}, &stage_3),
      row("", "zero_optimization.offload_param.nvme_path", AT(zero.parameter_path), cluster_rates,
          {.example = "elsewhere"}, &values_in_files),
      row("", "zero_optimization.offload_param.buffer_count",
          AT(zero.options.offload_param.buffer_count), buckets, {.most = 1e6}, &values_in_files),
      row("", "zero_optimization.offload_param.buffer_size",
          AT(zero.options.offload_param.buffer_size), buckets, {}, &values_in_files),
      row("", "zero_optimization.offload_param.max_in_cpu",
          AT(zero.options.offload_param.max_in_cpu), buckets, {}, &values_in_files),
      row("", "zero_optimization.offload_param.pin_memory",
          AT(zero.options.offload_param.pin_memory), cluster_rates, {}, &values_away),
      row("", "zero_optimization.offload_optimizer.pin_memory",
          AT(zero.options.offload_optimizer.pin_memory), cluster_rates, {}, &states_away)
          .also(older("zero_optimization.cpu_offload_use_pin_memory")),
      row("", "zero_optimization.offload_optimizer.nvme_path", AT(zero.optimizer_path),
          cluster_rates, {.example = "elsewhere"}, &states_in_files),
      row("", "zero_optimization.offload_optimizer.buffer_count",
          AT(zero.options.offload_optimizer.nvme.buffer_count), buckets, {.most = 1e6},
          &states_in_files),
      row("", "zero_optimization.sub_group_size",
          AT(zero.options.offload_optimizer.nvme.sub_group_size), buckets, {.least = 1},
          &states_in_files),
      row("--optimizer-offload-fraction", "zero_optimization.offload_optimizer.ratio",
          AT(zero.options.offload_optimizer.cpu.ratio), offloaded, {.most = 1}, &states_on_cpu),
      // Not a DeepSpeed key: the delayed parameter update of arXiv:2101.06840.
      row("", "zero_optimization.offload_optimizer.delayed_update",
          AT(zero.options.offload_optimizer.cpu.delayed_update), offloaded, {}, &states_on_cpu),
      row("", "aio.block_size", AT(zero.aio.block_size), cluster_rates, {.least = 512}, &files),
      row("", "aio.queue_depth", AT(zero.aio.queue_depth), cluster_rates, {.least = 1, .most = 1e6},
          &files),
      row("", "aio.single_submit", AT(zero.aio.single_submit), cluster_rates, {}, &files),
  };
}

}  // namespace suite::configuration
