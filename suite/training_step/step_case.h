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
  std::string model = "small", seq_length = "model";  // seq_length: tokens, or "model"
  std::string model_args = "none";                    // model_arguments.h
  machine::Dtype dtype = machine::Dtype::float32;
  machine::Transport transport = machine::Transport::shared_memory;
  std::string schedule = "1f1b";
  std::string virtual_stages = "schedule";  // or a number: schedule has a number of its own
  std::string partition_method = "uniform";
  int zero_stage = 1;
  std::string optimizer = "adamw";  // or sgd
  // none, cpu, nvme: in the system's temporary folder
  std::string offload_optimizer = "none", offload_param = "none";
  int tp = 1, pp = 1, dp = 1;
  int micro_batch_size = 1, global_batch_size = 8;
  int sequence_parallel = 0;
  std::string recompute_granularity = "none", recompute_method = "uniform";
  int recompute_num_layers = 1, distribute_saved_activations = 0, use_flash_attn = 0;
  int uneven_tokens = 0;
  int cpu_checkpointing = 0;  // DeepSpeed's word
};

// The axes, with the values of `usual`; the units add their slices.
harness::Sweep<StepCase> step_sweep(const StepCase& usual);
// A grid and its number of ranks, of one value or several: `only` keeps what fits together.
std::vector<harness::Variation<StepCase>> grids(std::vector<int> ranks, std::vector<int> tp,
                                                std::vector<int> pp, std::vector<int> dp);

// What a configuration file says of a step beyond its axes; the model "configured" and the
// optimizer "configured" are its. Of the process, set once, before any sweep is asked.
inline std::optional<TrainingConfig> configured;

// Throws std::invalid_argument as set_model does.
TrainingConfig config_of(const StepCase& step, std::uint64_t seed);

// Why these values make no step, or empty.
std::string why_no_step(const StepCase& step);

}  // namespace suite
