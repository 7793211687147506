// Keys of ZeRO and of its offload: DeepSpeed's zero_optimization and aio.

#include "suite/configuration/keys.h"

namespace suite::configuration {
namespace {

using Config = const TrainingConfig&;
using zero::OffloadDevice;

OffloadDevice states(Config c) { return c.zero.options.offload_optimizer.device; }
OffloadDevice values(Config c) { return c.zero.options.offload_param.device; }

const Needs sharded{"zero_optimization.stage 1 to 3", [](Config c) { return c.zero.stage >= 1; }};
const Needs stage_2{"zero_optimization.stage 2 or 3", [](Config c) { return c.zero.stage >= 2; }};
const Needs stage_3{"zero_optimization.stage 3", [](Config c) { return c.zero.stage == 3; }};
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

}  // namespace

std::vector<Key> zero_keys() {
  return {
      {.deepspeed = "communication_data_type",
       .field = AT(zero.communication_data_type),
       .limits = {.choices = {"fp16", "bf16", "fp32"},
                  .synonyms = {{"float16", "fp16"}, {"bfloat16", "bf16"}, {"float32", "fp32"}}},
       .effect = Effect::planned,
       .why = "gradients are sent in float32 here; zero_step judges narrower dtypes",
       .in_step =
           [](Config c) {
             return c.zero.communication_data_type.empty() ||
                    c.zero.communication_data_type == "fp32";
           }},
      row("", "zero_optimization.contiguous_gradients", AT(zero.options.contiguous_gradients), {},
          &stage_2),
      row("--ddp-bucket-size", "zero_optimization.reduce_bucket_size", AT(zero.reduce_bucket_size),
          {.least = 1}),
      row("", "zero_optimization.allgather_bucket_size", AT(zero.options.allgather_bucket_size),
          {.least = 1}, &sharded),
      {.megatron = "--overlap-grad-reduce",
       .deepspeed = "zero_optimization.overlap_comm",
       .field = AT(zero.overlap_comm),
       .since = "none, which is true in stage 3 only; false in older releases"},
      row("", "zero_optimization.stage3_prefetch_bucket_size",
          AT(zero.options.stage3_prefetch_bucket_size), {}, &stage_3),
      row("", "zero_optimization.stage3_param_persistence_threshold",
          AT(zero.param_persistence_threshold), {}, &stage_3),
      row("", "zero_optimization.stage3_max_live_parameters",
          AT(zero.options.stage3_max_live_parameters), {}, &stage_3),
      row("", "zero_optimization.offload_param.nvme_path", AT(zero.parameter_path), {},
          &values_in_files),
      row("", "zero_optimization.offload_param.buffer_count",
          AT(zero.options.offload_param.buffer_count), {.most = 1e6}, &values_in_files),
      row("", "zero_optimization.offload_param.buffer_size",
          AT(zero.options.offload_param.buffer_size), {}, &values_in_files),
      row("", "zero_optimization.offload_param.max_in_cpu",
          AT(zero.options.offload_param.max_in_cpu), {}, &values_in_files),
      row("", "zero_optimization.offload_param.pin_memory",
          AT(zero.options.offload_param.pin_memory), {}, &values_away),
      row("", "zero_optimization.offload_optimizer.pin_memory",
          AT(zero.options.offload_optimizer.pin_memory), {}, &states_away),
      row("", "zero_optimization.offload_optimizer.nvme_path", AT(zero.optimizer_path), {},
          &states_in_files),
      row("", "zero_optimization.offload_optimizer.buffer_count",
          AT(zero.options.offload_optimizer.nvme.buffer_count), {.most = 1e6}, &states_in_files),
      row("", "zero_optimization.sub_group_size",
          AT(zero.options.offload_optimizer.nvme.sub_group_size), {.least = 1}, &states_in_files),
      row("--optimizer-offload-fraction", "zero_optimization.offload_optimizer.ratio",
          AT(zero.options.offload_optimizer.cpu.ratio), {.most = 1}, &states_on_cpu),
      // Not a DeepSpeed key: the delayed parameter update of arXiv:2101.06840.
      row("", "zero_optimization.offload_optimizer.delayed_update",
          AT(zero.options.offload_optimizer.cpu.delayed_update), {}, &states_on_cpu),
      row("", "aio.block_size", AT(zero.aio.block_size), {.least = 512}, &files),
      row("", "aio.queue_depth", AT(zero.aio.queue_depth), {.least = 1, .most = 1e6}, &files),
      row("", "aio.single_submit", AT(zero.aio.single_submit), {}, &files),
  };
}

}  // namespace suite::configuration
