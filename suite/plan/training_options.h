#pragma once
// The options that give a training run to `plan` and `predict`: files of DeepSpeed and Megatron-LM,
// Megatron-LM's arguments, a model by name.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "suite/configuration/resolve.h"
#include "suite/options/options.h"

namespace suite::configuration {

// Reads "80GB", "7B" or "640GiB": units are decimal, or binary with an i.
using Units = std::vector<std::pair<std::string_view, double>>;
double parse_amount(std::string_view flag, const std::string& text, const Units& units,
                    std::string_view example);

// Adds the group Training. Words that are not options are Megatron-LM's arguments.
void add_training_options(Options& options, Sources& sources);
// Rejects words that are neither options of the command nor arguments of Megatron-LM.
void check_megatron(std::string_view command, const std::vector<std::string>& words,
                    const std::vector<std::string>& own);
// Throws harness::UsageError if the model is missing. configured: a ds_config.json is given.
void need_a_model(const TrainingConfig& training, bool configured);

}  // namespace suite::configuration
