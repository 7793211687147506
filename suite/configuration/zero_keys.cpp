// Keys of ZeRO and of its offload: DeepSpeed's zero_optimization and aio.

#include "suite/configuration/keys.h"

namespace suite::configuration {
namespace {

#define AT(member) (+[](TrainingConfig& c) { return Field(c.member); })

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
       .why = "here gradients are float32 on the wire; zero_step judges narrower ones",
       .in_step =
           [](Config c) {
             return c.zero.communication_data_type.empty() ||
                    c.zero.communication_data_type == "fp32";
           }},
      {.deepspeed = "zero_optimization.contiguous_gradients",
       .field = AT(zero.options.contiguous_gradients),
       .needs = &stage_2},
      {.megatron = "--ddp-bucket-size",
       .deepspeed = "zero_optimization.reduce_bucket_size",
       .field = AT(zero.reduce_bucket_size),
       .limits = {.least = 1}},
      {.deepspeed = "zero_optimization.allgather_bucket_size",
       .field = AT(zero.options.allgather_bucket_size),
       .limits = {.least = 1},
       .needs = &sharded},
      {.megatron = "--overlap-grad-reduce",
       .deepspeed = "zero_optimization.overlap_comm",
       .field = AT(zero.overlap_comm),
       .since = "none, which is true in stage 3 only; false in older releases"},
      {.deepspeed = "zero_optimization.stage3_prefetch_bucket_size",
       .field = AT(zero.options.stage3_prefetch_bucket_size),
       .needs = &stage_3},
      {.deepspeed = "zero_optimization.stage3_param_persistence_threshold",
       .field = AT(zero.param_persistence_threshold),
       .needs = &stage_3},
      {.deepspeed = "zero_optimization.stage3_max_live_parameters",
       .field = AT(zero.options.stage3_max_live_parameters),
       .needs = &stage_3},
      {.deepspeed = "zero_optimization.offload_param.nvme_path",
       .field = AT(zero.parameter_path),
       .needs = &values_in_files},
      {.deepspeed = "zero_optimization.offload_param.buffer_count",
       .field = AT(zero.options.offload_param.buffer_count),
       .limits = {.most = 1e6},
       .needs = &values_in_files},
      {.deepspeed = "zero_optimization.offload_param.buffer_size",
       .field = AT(zero.options.offload_param.buffer_size),
       .needs = &values_in_files},
      {.deepspeed = "zero_optimization.offload_param.max_in_cpu",
       .field = AT(zero.options.offload_param.max_in_cpu),
       .needs = &values_in_files},
      {.deepspeed = "zero_optimization.offload_optimizer.nvme_path",
       .field = AT(zero.optimizer_path),
       .needs = &states_in_files},
      {.deepspeed = "zero_optimization.offload_optimizer.buffer_count",
       .field = AT(zero.options.offload_optimizer.nvme.buffer_count),
       .limits = {.most = 1e6},
       .needs = &states_in_files},
      {.deepspeed = "zero_optimization.sub_group_size",
       .field = AT(zero.options.offload_optimizer.nvme.sub_group_size),
       .limits = {.least = 1},
       .needs = &states_in_files},
      {.megatron = "--optimizer-offload-fraction",
       .deepspeed = "zero_optimization.offload_optimizer.ratio",
       .field = AT(zero.options.offload_optimizer.cpu.ratio),
       .limits = {.most = 1},
       .needs = &states_on_cpu},
      // Not DeepSpeed's word: the delayed parameter update of arXiv:2101.06840.
      {.deepspeed = "zero_optimization.offload_optimizer.delayed_update",
       .field = AT(zero.options.offload_optimizer.cpu.delayed_update),
       .needs = &states_on_cpu},
      {.deepspeed = "aio.block_size",
       .field = AT(zero.aio.block_size),
       .limits = {.least = 512},
       .needs = &files},
      {.deepspeed = "aio.queue_depth",
       .field = AT(zero.aio.queue_depth),
       .limits = {.least = 1, .most = 1e6},
       .needs = &files},
      {.deepspeed = "aio.single_submit", .field = AT(zero.aio.single_submit), .needs = &files},
  };
}

}  // namespace suite::configuration
