#pragma once
// The models by name, and how a command line gives a model's shape.
//
//   tiny, small            tests
//   gpt2_124m, gpt2_1558m  Radford et al. 2019
//   gpt3_175b              Brown et al. 2020, arXiv:2005.14165
//   bert_tiny              BERT's parts, for tests
//   bert_base, bert_large  Devlin et al. 2019, arXiv:1810.04805
//   t5_tiny                T5's parts, for tests
//   t5_small, _base, _large  Raffel et al. 2020, arXiv:1910.10683
//   llama_tiny             Llama's parts, for tests
//   llama2_7b, _13b, _70b  Touvron et al. 2023, arXiv:2307.09288
//   moe_tiny               a mixture of experts, for tests
//   mixtral_8x7b           Jiang et al. 2024, arXiv:2401.04088

#include <string>
#include <vector>

#include "suite/configuration/training_config.h"

namespace suite {

const std::vector<std::string>& model_names();
// Returns a model without padded vocabulary. Throws std::invalid_argument with the known names.
TrainingConfig::Model named_model(const std::string& name);

// Returns the rows of the token table: a multiple of --make-vocab-size-divisible-by times tp, as in
// Megatron-LM. The default is 128. A vocabulary that is a multiple of 128 and that tp divides is
// then not padded, so that the small models are the same for every tp.
int padded_vocabulary(const TrainingConfig::Model& model, int tp);

// Sets the shape of a named model, its vocabulary padded for the config's tp. Throws as
// named_model.
void set_model(TrainingConfig& config, const std::string& name);
// Derives the sequence from seq_length, the use of query groups from their number, and the rows of
// the vocabulary from its tokens and tp. Throws std::invalid_argument.
void complete_shape(TrainingConfig& config);

}  // namespace suite
