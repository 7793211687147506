#pragma once
// The models by name, and how a command line gives a model's shape.
//
//   tiny, small            tests
//   gpt2_124m, gpt2_1558m  Radford et al. 2019
//   gpt3_175b              Brown et al. 2020, arXiv:2005.14165
//   llama_tiny             Llama's parts, for tests
//   llama2_7b              Touvron et al. 2023, arXiv:2307.09288

#include <string>
#include <vector>

#include "suite/configuration/training_config.h"

namespace suite {

const std::vector<std::string>& model_names();
// Its vocabulary is not padded. Throws std::invalid_argument naming the known.
TrainingConfig::Model named_model(const std::string& name);

// Rows of a table of so many tokens: a multiple of --make-vocab-size-divisible-by times tp, as
// Megatron-LM pads. By default 128, and a vocabulary that is a multiple of 128 and that tp divides
// stays as it is, so that the small models are the same for every tp.
int padded_vocabulary(const TrainingConfig::Model& model, int tp);

// Sets the shape to that of a model by name, its vocabulary padded for the config's tp. Throws
// std::invalid_argument as named_model.
void set_model(TrainingConfig& config, const std::string& name);
// Derives what follows from the members that were set: sequence from seq_length, query groups from
// their number, the rows of the vocabulary from its tokens and tp. Throws std::invalid_argument.
void complete_shape(TrainingConfig& config);

}  // namespace suite
