#pragma once
// The shape of a model, and the degrees that can shard it. The defaults are GPT-2's. Llama (Touvron
// et al. 2023, arXiv:2307.09288) has RMSNorm, SwiGLU, rotary positions, grouped queries, no biases
// and an untied output layer. BERT (Devlin et al. 2019, arXiv:1810.04805) is an encoder, T5 (Raffel
// et al. 2020, arXiv:1910.10683) an encoder-decoder. Mixtral (Jiang et al. 2024, arXiv:2401.04088)
// has a mixture of experts in place of the perceptron. The names are Megatron-LM's arguments, and
// of sparse attention DeepSpeed's keys.

#include <string_view>

#include "layers/moe_config.h"
#include "layers/sparse/sparse_layout.h"

namespace layers {

enum class Normalization : unsigned char { layer_norm, rms_norm };  // "LayerNorm", "RMSNorm"
// relative: a bias of the scores of an encoder-decoder (attention/relative_bias.h).
enum class PositionEmbedding : unsigned char { learned_absolute, rope, relative };
enum class Architecture : unsigned char {
  decoder,  // a token attends to itself and the tokens before it
  // BERT with its norms first, as in Megatron-LM: a token attends to all tokens of its sequence,
  // without padding. The embedding has token types. The head predicts masked tokens.
  encoder,
  // T5 with GELU: an encoder, and a decoder that also attends to the encoder's output. Both have a
  // half of the layers, the same number of positions, and share the token table.
  encoder_decoder,
};
// The buckets of relative positions, for a stack and a head.
inline constexpr int relative_buckets_count = 32;

std::string_view name(Normalization normalization);
std::string_view name(PositionEmbedding position_embedding);
std::string_view name(Architecture architecture);
// Return the value of a name. Throw std::invalid_argument that names the nearest.
Normalization normalization(std::string_view text);
PositionEmbedding position_embedding_type(std::string_view text);
Architecture architecture(std::string_view text);

struct GptConfig {
  int layers = 2;  // of both stacks together
  int hidden = 64;
  int heads = 4;
  int vocabulary = 256;  // rows of the token table, padding included
  int sequence = 64;
  double layer_norm_epsilon = 1e-5;  // of either normalization

  Architecture architecture = Architecture::decoder;
  Normalization normalization = Normalization::layer_norm;
  bool swiglu = false;      // else GELU
  int ffn_hidden_size = 0;  // 0: 4 hidden; with swiglu 8/3 hidden, rounded down to a multiple of 64
  PositionEmbedding position_embedding_type = PositionEmbedding::learned_absolute;
  double rotary_base = 10000;
  bool group_query_attention = false;
  int num_query_groups = 1;  // heads of keys and values, with group_query_attention
  bool disable_bias_linear = false;
  bool untie_embeddings_and_output_weights = false;
  double hidden_dropout = 0;     // after embedding, attention and perceptron
  double attention_dropout = 0;  // of attention's probabilities
  // The experts of the layers 0, moe_layer_freq, 2 moe_layer_freq, … num_experts 0: no layer has
  // any; ffn_hidden_size 0: that of the model. The model sets hidden, swiglu and bias (mixture).
  MoeConfig moe{.ffn_hidden_size = 0,
                .num_experts = 0,
                .token_dispatcher_type = TokenDispatcherType::allgather};
  int moe_layer_freq = 1;
  // The blocks of every self-attention; without a mode all pairs. sparse_options() has the
  // direction of the architecture.
  SparseOptions sparse{.pattern = {.mode = SparseMode::none}};

  int ffn() const;
  int head() const { return hidden / heads; }
  int query_groups() const { return group_query_attention ? num_query_groups : heads; }
  bool encoder() const { return architecture == Architecture::encoder; }
  bool encoder_decoder() const { return architecture == Architecture::encoder_decoder; }
  int encoder_layers() const { return layers / 2; }  // of an encoder-decoder
  bool learned_positions() const {
    return position_embedding_type == PositionEmbedding::learned_absolute;
  }
  bool relative() const { return position_embedding_type == PositionEmbedding::relative; }
  bool rotary() const { return position_embedding_type == PositionEmbedding::rope; }
  // Columns of queries, keys and values together, and of the first product of the perceptron.
  int qkv() const { return hidden + 2 * query_groups() * head(); }
  int inner() const { return swiglu ? 2 * ffn() : ffn(); }
  bool has_experts() const { return moe.num_experts > 0; }
  bool has_experts(int layer) const { return has_experts() && layer % moe_layer_freq == 0; }
  int moe_layers() const;
  MoeConfig mixture() const;  // of a layer with experts
  SparseOptions sparse_options() const;

  // Throws std::invalid_argument that names the key, its value and the nearest valid value. Extents
  // must be positive. heads must divide hidden, num_query_groups must divide heads, and pp must
  // divide layers. tp must divide heads, query groups, ffn_hidden_size and vocabulary. A rotated
  // head must have an even size. An encoder-decoder requires relative positions, heads without
  // groups and an even number of layers. Experts require a decoder, and tp must divide their
  // ffn_hidden_size. A dropout must be a probability below 1. Sparse attention requires a decoder
  // or an encoder, and a sequence of whole blocks. An option requires its feature.
  void validate(int tp = 1, int pp = 1) const;
  void validate_sparse() const;  // only what concerns sparse attention
};

}  // namespace layers
