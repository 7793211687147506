#pragma once
// What "auto" becomes, as Hugging Face's Trainer fills it in.

#include <span>
#include <string>
#include <string_view>

#include "suite/configuration/field.h"
#include "suite/configuration/training_config.h"

namespace suite::configuration {

struct Filled {
  Value value;      // null: it needs what is not known
  std::string why;  // the rule, or what it needs
};
struct Automatic {
  std::string_view path;
  Filled (*fill)(const TrainingConfig& config);
};
// In the order in which they are filled; the batch's three are not among them (resolve.h).
std::span<const Automatic> automatic_rules();

}  // namespace suite::configuration
