#pragma once
// Resolves a user's configuration files to one TrainingConfig with consistent numbers.
//
//   const Resolved run = resolve({.deepspeed_file = "ds_config.json", .gpus = 64});
//   run.config.batch.gradient_accumulation_steps;
//   fmt::print("{}", text(run));
//
// train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data-parallel
// size: any two of the three give the third. If only a batch is given, the accumulation is 1.
// "auto" takes the value of another source, else the default or rule of Hugging Face's Trainer. If
// the rule needs an unknown value, "auto" is rejected.
//
// A key that is not given has its tool's default: DeepSpeed's if a ds_config.json is read, else
// Megatron-LM's.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/unit/sweep.h"
#include "suite/configuration/readers.h"

namespace suite::configuration {

struct Sources {
  std::string deepspeed_file{}, megatron_file{};  // empty: none
  std::vector<std::string> words{};               // Megatron-LM's arguments on the command line
  harness::AxisFlags axes{};                      // of a step unit, one value each
  std::string model{};                            // by name (models.h)
  std::int64_t parameters = 0;                    // in place of a shape
  std::int64_t gpus = 1;
  bool ignore_unknown = false;

  std::string file() const { return deepspeed_file.empty() ? megatron_file : deepspeed_file; }
};

struct Entry {
  std::string key, value;
  std::string origin;  // "ds_config.json: zero_optimization.stage", "default", "auto: …"
  std::string since;   // of a default that depends on DeepSpeed's version
  bool is_text = false;
};

struct Resolved {
  TrainingConfig config;
  std::vector<Entry> entries;    // every key that is in force, in the order of the table
  std::vector<Ignored> ignored;  // every given key that is not in force
  std::vector<std::string> warnings;
  std::optional<std::uint64_t> seed;  // empty: no source gives one
};

// Throws harness::UsageError: one line with the file, the key and the expected value.
Resolved resolve(const Sources& sources);

// Returns the part of a configuration that no training step here supports, or empty.
std::string why_no_step(const TrainingConfig& config);

// Lists every key with its value and origin (a file by its name only), then the warnings. json()
// has the same content: {"keys": {…: {"value", "origin", "since"}}, "ignored": {…: {"value",
// "origin", "why"}}, "warnings": […]}.
std::string text(const Resolved& resolved);
std::string json(const Resolved& resolved);

}  // namespace suite::configuration
