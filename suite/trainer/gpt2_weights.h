#pragma once
// Reads and writes GPT-2 weights in a safetensors file, in the names and layouts of Hugging Face's
// transformers (models/gpt2, table in gpt2_tensors.h), for a model divided over TP and PP.
//
// Padding: the table may have fewer rows than the model's vocabulary, up to 127 for each rank of TP
// (Megatron pads to multiples of 128 * tp). Missing rows are zero after loading and are not saved.
// Their logits are zero, not masked, so they take part in the softmax: a model whose logits are all
// far below zero has a larger loss than without padding.

//
// Positions: the file may have more than the model's sequence length. The first are loaded and
// saved.

#include <string>

#include "layers/gpt_config.h"
#include "layers/parameter.h"
#include "machine/world/grid.h"
#include "machine/world/world.h"

namespace suite {

// Throws FileError naming a feature that the model has and GPT-2 lacks (layers/gpt_config.h).
// Dropout and the feed-forward width do not matter.
void refuse_unlike_gpt2(const layers::GptConfig& config);

// Throws the errors of refuse_unlike_gpt2, and those of load_gpt2 on any rank of this model.
void check_gpt2(const std::string& path, const layers::GptConfig& config, int tp);

// Fills the parameters of this rank (of any stage) from F32, F16, BF16 or F64 tensors, whose names
// may begin with "transformer.". Rounds each value once to the parameter's dtype. Every rank checks
// the whole file. Ignores attention masks (h.N.attn.bias, masked_bias), and lm_head.weight if it
// equals the table. Returns the number of the table's rows in the file. Throws FileError that names
// a missing tensor, an unknown one (with the nearest name) or one with another shape.
int load_gpt2(const std::string& path, const layers::GptConfig& config,
              const layers::Parameters& parameters, int tp, int tp_rank);

// Writes the first `vocabulary` rows of the table and all other tensors in the parameters' dtype.
// stages: stages_of_layers of model_chunks.h. Collective over the group, whose ranks are the
// grid's. Throws FileError on all ranks if rank 0, which writes, cannot.
void save_gpt2(const std::string& path, const layers::GptConfig& config, int vocabulary,
               const layers::Parameters& parameters, machine::World& world,
               const machine::Group& group, const machine::Grid& grid,
               const std::vector<int>& stages);

}  // namespace suite
