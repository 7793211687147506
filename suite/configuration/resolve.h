#pragma once
// A configuration as users have it, from its files to one Training whose numbers fit each other.
//
//   const Resolved run = resolve({.deepspeed_file = "ds_config.json", .gpus = 64});
//   run.training.batch.gradient_accumulation_steps;
//   fmt::print("{}", text(run));
//
// train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data-parallel
// size: of the three any two say the third; micro-batch or whole batch alone mean an accumulation
// of 1. "auto", which Hugging Face's Trainer fills in, is what another source says, else what the
// Trainer's own default or rule makes of it; where that needs what is not known, it is refused.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "suite/configuration/training.h"

namespace suite::configuration {

struct Sources {
  std::string deepspeed_file{}, megatron_file{};  // empty: none
  std::vector<std::string> words{};               // Megatron-LM's, of the command line
  std::string model{};                            // by name (model_shape.h)
  std::int64_t parameters = 0;                    // in place of a shape
  std::int64_t gpus = 1;
  bool ignore_unknown = false;
};

struct Entry {
  std::string key, value;
  std::string origin;  // "ds_config.json: zero_optimization.stage", "default", "auto: …"
  std::string since;   // of a default that depends on DeepSpeed's version
  bool is_text = false;
};

struct Resolved {
  Training training;
  std::vector<Entry> entries;  // every key that is honoured, in the order of the tables
  std::vector<std::string> warnings;
  std::optional<std::uint64_t> seed;  // empty: no source gives one
};

// Throws harness::UsageError: one line with the file, the key and what would be right.
Resolved resolve(const Sources& sources);

// Every key with its value and where it is from (of a file its name alone), then the warnings. The
// same as JSON: {"keys": {…: {"value", "origin", "since"}}, "warnings": […]}.
std::string text(const Resolved& resolved);
std::string json(const Resolved& resolved);

}  // namespace suite::configuration
