#pragma once
// Checkpoints of Hugging Face's transformers (models/gpt2, models/llama): a folder with config.json
// and *.safetensors. Conversions to and from ours (training_checkpoint.h).
//
//   Llama's tensor                     shape          ours                         rows of ours
//   model.embed_tokens.weight          [V, h]         embedding.token.weight       without padding
//   model.layers.N.input_layernorm     [h]            blocks.N.norm1.gain
//   …self_attn.q_proj.weight           [h, h]         blocks.N.attention.qkv       queries of a
//   group …self_attn.k_proj, v_proj          [g d, h]       blocks.N.attention.qkv       then its k
//   and v …self_attn.o_proj.weight           [h, h]         blocks.N.attention.projection
//   …post_attention_layernorm.weight   [h]            blocks.N.norm2.gain
//   …mlp.gate_proj, up_proj            [f, h]         blocks.N.mlp.fc1 [2, f h]    gate, then up
//   …mlp.down_proj.weight              [h, f]         blocks.N.mlp.fc2.weight
//   model.norm.weight                  [h]            head.norm.gain
//   lm_head.weight                     [V, h]         head.output.weight           if it is untied
//
// Both rotate halves of a head, so q and k need no permutation. GPT-2: gpt2_tensors.h.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "machine/device/dtype.h"
#include "suite/configuration/training_config.h"

namespace suite {

struct HuggingFaceTensor {
  std::string theirs, ours;
  std::vector<std::uint64_t> shape;
  std::vector<std::int64_t> our_shape;  // of the whole parameter
  bool transposed = false;              // theirs is [in, out]
  // Returns our row of their output.
  std::function<std::int64_t(std::int64_t)> our_row = [](std::int64_t row) { return row; };
};
// Throws FileError for a model that is neither GPT-2's nor Llama's.
std::vector<HuggingFaceTensor> hugging_face_tensors(const TrainingConfig::Model& model);

// The model's shape as a config.json, and back. dtype: of the tensors.
std::string hugging_face_config(const TrainingConfig::Model& given, machine::Dtype dtype);
TrainingConfig::Model read_hugging_face_config(const std::string& path);

// Convert a folder. wanted: dtype of the new tensors; empty: that of the old ones. The values of a
// training's checkpoint are written, without optimizer states. A checkpoint of ours that is made
// from theirs has step 0 and no optimizer states, and can start a training of any data and
// optimizer. Throw FileError.
void to_hugging_face(const std::string& source, const std::string& target,
                     std::optional<machine::Dtype> wanted);
void from_hugging_face(const std::string& source, const std::string& target,
                       std::optional<machine::Dtype> wanted);

}  // namespace suite
