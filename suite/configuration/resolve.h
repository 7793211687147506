#pragma once
// A configuration as users have it, from its files to one TrainingConfig whose numbers fit each
// other.
//
//   const Resolved run = resolve({.deepspeed_file = "ds_config.json", .gpus = 64});
//   run.config.batch.gradient_accumulation_steps;
//   fmt::print("{}", text(run));
//
// train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data-parallel
// size: any two of the three give the third; micro-batch or whole batch alone mean an accumulation
// of 1. "auto", which Hugging Face's Trainer fills in, is what another source gives, else the
// Trainer's own default or rule; if that needs what is not known, it is refused.
//
// Of a key that says nothing of a step the default of its tool holds: DeepSpeed's where a
// ds_config.json is read, else Megatron-LM's.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/unit/sweep.h"
#include "suite/configuration/readers.h"

namespace suite::configuration {

struct Sources {
  std::string deepspeed_file{}, megatron_file{};  // empty: none
  std::vector<std::string> words{};               // Megatron-LM's, of the command line
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
  std::vector<Ignored> ignored;  // every key that was given and is not
  std::vector<std::string> warnings;
  std::optional<std::uint64_t> seed;  // empty: no source gives one
};

// Throws harness::UsageError: one line with the file, the key and what would be right.
Resolved resolve(const Sources& sources);

// What a configuration asks for and no training step here does; empty: all is done.
std::string why_no_step(const TrainingConfig& config);

// Every key with its value and where it is from (of a file its name alone), then the warnings. The
// same as JSON: {"keys": {…: {"value", "origin", "since"}}, "ignored": {…: {"value", "origin",
// "why"}}, "warnings": […]}.
std::string text(const Resolved& resolved);
std::string json(const Resolved& resolved);

}  // namespace suite::configuration
