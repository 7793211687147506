#pragma once
// GPT-2 weights by the names and layouts of Hugging Face's transformers (models/gpt2), in a
// safetensors file, from and to the parameters of a model cut over TP and PP.
// gpt2_tensors.h has the table of them.
//
// Padding: the table may have fewer rows than the model's vocabulary, up to 127 for each rank of TP
// (Megatron pads to multiples of 128 * tp). Rows that the file does not have are zero after loading
// and left out when saving. Their logits are zero then, not masked: they take part in the softmax,
// and a model whose logits are all far below zero has a larger loss here than without padding.

//
// Positions: the file may have more than the model's sequence; the first are loaded, and saved.

#include <string>

#include "layers/gpt_config.h"
#include "layers/parameter.h"
#include "machine/world/grid.h"
#include "machine/world/world.h"

namespace suite {

// Throws FileError naming what of a model's shape GPT-2 has not (layers/gpt_config.h): its weights
// are none of that model's. Dropout is no matter of weights, nor is the feed-forward width.
void refuse_unlike_gpt2(const layers::GptConfig& config);

// Throws what load_gpt2 would throw on any rank of this model, and what refuse_unlike_gpt2 does.
void check_gpt2(const std::string& path, const layers::GptConfig& config, int tp);

// Fills the parameters of this rank (of any stage) from F32, F16, BF16 or F64 tensors, whose names
// may begin with "transformer."; each value is rounded once to the parameter's dtype. The whole
// file is checked, whatever this rank needs of it. Attention masks (h.N.attn.bias, masked_bias)
// are passed over, and so is lm_head.weight if it equals the table. Returns the table's rows in the
// file. Throws FileError naming the tensor, missing, unknown (and the nearest) or of another shape.
int load_gpt2(const std::string& path, const layers::GptConfig& config,
              const layers::Parameters& parameters, int tp, int tp_rank);

// Writes the first `vocabulary` rows of the table and all else in the parameters' dtype. stages:
// that hold each of the layers, then the head (model_chunks.h). Collective over the group, whose
// ranks are the grid's; throws FileError on all of them when rank 0, which writes, can't.
void save_gpt2(const std::string& path, const layers::GptConfig& config, int vocabulary,
               const layers::Parameters& parameters, machine::World& world,
               const machine::Group& group, const machine::Grid& grid,
               const std::vector<int>& stages);

}  // namespace suite
