#pragma once
// Changes to a named model in Megatron-LM's words, as a script of theirs has them:
//
//   --model-args="--swiglu --normalization RMSNorm --group-query-attention --num-query-groups 2"
//
// Words are separated by blanks; "key=value" and keys without their dashes are taken too. "none"
// changes nothing.

#include <string_view>

#include "layers/gpt_config.h"

namespace suite {

// Throws std::invalid_argument naming an argument that is unknown (and the nearest that is not),
// that lacks its value or whose value cannot be read. What does not fit the model
// GptConfig::validate refuses.
void apply_model_arguments(layers::GptConfig& model, std::string_view text);

}  // namespace suite
