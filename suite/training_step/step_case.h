#pragma once
// The axes of a training step, which the units gpt_step, llama_step and training_speed have in
// common. Degrees, batches and the optimizer have Megatron-LM's names on the command line.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/unit/sweep.h"
#include "suite/trainer/trainer.h"

namespace suite {

struct StepCase {
  int ranks = 1;
  std::string model, seq_length;  // seq_length: tokens, or "model"
  std::string model_args;         // model_arguments.h
  machine::Dtype dtype{};
  machine::Transport transport{};
  std::string schedule;
  std::string virtual_stages;  // a number, or "schedule": as many as it has by itself
  std::string partition_method;
  int zero_stage = 1;
  std::string optimizer;  // adamw, sgd
  // none, cpu, nvme: in the system's temporary folder
  std::string offload_optimizer, offload_param;
  int tp = 1, pp = 1, dp = 1;
  int micro_batch_size = 1, global_batch_size = 8;
  int sequence_parallel = 0;
  std::string recompute_granularity, recompute_method;
  int recompute_num_layers = 1, distribute_saved_activations = 0, use_flash_attn = 0;
  int uneven_tokens = 0;
  int cpu_checkpointing = 0;  // DeepSpeed's word
};

// What a profile runs of each axis; the flags take more.
struct StepValues {
  std::vector<std::string> model, model_args{"none"}, seq_length{"model"};
  std::vector<machine::Dtype> dtype{machine::Dtype::float32, machine::Dtype::bfloat16};
  std::vector<machine::Transport> transport{machine::Transport::shared_memory};
  std::vector<std::string> schedule{"1f1b"};
  std::vector<std::string> virtual_stages{"schedule"}, partition_method{"uniform"};
  std::vector<int> zero_stage{1};
  std::vector<std::string> optimizer{"adamw"}, offload_optimizer{"none"}, offload_param{"none"};
  std::vector<int> ranks{}, tp{}, pp{1}, dp{1};
  std::vector<int> micro_batch_size{1}, global_batch_size{};
  std::vector<int> sequence_parallel{0};
  std::vector<std::string> recompute_granularity{"none"};
  std::vector<int> distribute_saved_activations{0}, cpu_checkpointing{0}, use_flash_attn{0};
  std::vector<int> uneven_tokens{0};
};
harness::Sweep<StepCase> step_sweep(const StepValues& values);

// What a configuration file says of a step beyond its axes; the model "configured" and the
// optimizer "configured" are its. Of the process, set once, before any sweep is asked.
inline std::optional<TrainingConfig> configured;

// Throws std::invalid_argument as set_model does.
TrainingConfig config_of(const StepCase& step, std::uint64_t seed);

// Why these values make no step, or empty.
std::string why_no_step(const StepCase& step);

}  // namespace suite
