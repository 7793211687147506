#pragma once
// The values that Hugging Face's Trainer gives to "auto".

#include <span>
#include <string>
#include <string_view>

#include "suite/configuration/field.h"
#include "suite/configuration/training_config.h"

namespace suite::configuration {

struct Filled {
  Value value;      // null: an input of the rule is unknown
  std::string why;  // the rule, or its unknown input
};
struct Automatic {
  std::string_view path;
  Filled (*fill)(const TrainingConfig& config);
};
// In the order of filling, without the three keys of the batch (resolve.h).
std::span<const Automatic> automatic_rules();

}  // namespace suite::configuration
