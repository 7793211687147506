#pragma once
// The axes of a training step, which the units gpt_step and training_speed have in common. Degrees
// and batches have Megatron-LM's names on the command line.

#include <cstdint>
#include <string>

#include "suite/training_step/trainer.h"

namespace suite {

struct StepCase {
  int ranks = 1;
  std::string model, seq_length;  // seq_length: tokens, or "model"
  std::string model_args;         // model_arguments.h
  machine::Dtype dtype{};
  machine::Transport transport{};
  std::string schedule;
  int zero_stage = 1;
  int tp = 1, pp = 1, dp = 1;
  int micro_batch_size = 1, global_batch_size = 8;
  int sequence_parallel = 0;
  std::string recompute_granularity, recompute_method;
  int recompute_num_layers = 1, distribute_saved_activations = 0, use_flash_attn = 0;
};

// Throws std::invalid_argument as set_model does.
TrainingConfig config_of(const StepCase& step, std::uint64_t seed);

// Why these values make no step, or empty.
std::string why_no_step(const StepCase& step);

}  // namespace suite
