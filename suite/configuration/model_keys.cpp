// Keys of the model: Megatron-LM's arguments.

#include "suite/configuration/keys.h"
#include "suite/configuration/models.h"

namespace suite::configuration {
namespace {

#define AT(member) (+[](TrainingConfig& c) { return Field(c.member); })

constexpr double below_one = 1 - 0x1p-53;
constexpr Limits extent() { return {.least = 1, .most = 1e7}; }

std::vector<std::string_view> views(const std::vector<std::string>& names) {
  return {names.begin(), names.end()};
}

const Needs learned{"--position-embedding-type learned_absolute",
                    [](const TrainingConfig& c) { return !c.model.rotary(); }};
const Needs rope{"--position-embedding-type rope",
                 [](const TrainingConfig& c) { return c.model.rotary(); }};

}  // namespace

std::vector<Key> model_keys() {
  return {
      {.axis = "model",
       .field = AT(model.name),
       .limits = {.choices = views(model_names())},
       .about = "a model by name"},
      {.axis = "model-args",
       .field = AT(model.arguments),
       .about = "changes to it in Megatron-LM's words: \"--swiglu --hidden-dropout 0.1\"; or none"},
      {.megatron = "--seq-length",
       .axis = "seq-length",
       .field = AT(model.seq_length),
       .limits = extent(),
       .unset = "model",
       .about = "tokens of a sequence; model: the model's own"},
      {.megatron = "--num-layers", .field = AT(model.layers), .limits = {.least = 1, .most = 1e5}},
      {.megatron = "--hidden-size", .field = AT(model.hidden), .limits = {.least = 1, .most = 1e6}},
      {.megatron = "--ffn-hidden-size", .field = AT(model.ffn_hidden_size), .limits = extent()},
      {.megatron = "--num-attention-heads",
       .field = AT(model.heads),
       .limits = {.least = 1, .most = 1e6}},
      {.megatron = "--group-query-attention", .field = AT(model.group_query_attention)},
      {.megatron = "--num-query-groups",
       .field = AT(model.num_query_groups),
       .limits = {.least = 1, .most = 1e6}},
      {.megatron = "--vocab-size",
       .deepspeed = "vocabulary_size",
       .field = AT(model.tokens),
       .limits = {.least = 1, .most = 1e9}},
      {.megatron = "--make-vocab-size-divisible-by",
       .field = AT(model.make_vocab_size_divisible_by),
       .limits = extent()},
      {.megatron = "--max-position-embeddings",
       .field = AT(model.max_position_embeddings),
       .limits = extent(),
       .needs = &learned,
       .effect = Effect::planned,
       .why = "a step's table of positions has --seq-length rows",
       .in_step =
           [](const TrainingConfig& c) {
             return c.model.max_position_embeddings == 0 ||
                    c.model.max_position_embeddings == c.model.sequence;
           }},
      {.megatron = "--swiglu", .field = AT(model.swiglu)},
      {.megatron = "--disable-bias-linear", .field = AT(model.disable_bias_linear)},
      {.megatron = "--untie-embeddings-and-output-weights",
       .field = AT(model.untie_embeddings_and_output_weights)},
      {.megatron = "--normalization",
       .field = AT(model.normalization),
       .limits = {.choices = {"LayerNorm", "RMSNorm"}}},
      {.megatron = "--norm-epsilon",
       .field = AT(model.layer_norm_epsilon),
       .limits = {.least = 1e-300, .most = 1}},
      {.megatron = "--position-embedding-type",
       .field = AT(model.position_embedding_type),
       .limits = {.choices = {"learned_absolute", "rope"}}},
      {.megatron = "--rotary-base",
       .field = AT(model.rotary_base),
       .limits = {.least = 1, .most = 1e15},
       .needs = &rope},
      {.megatron = "--hidden-dropout",
       .field = AT(model.hidden_dropout),
       .limits = {.most = below_one}},
      {.megatron = "--attention-dropout",
       .field = AT(model.attention_dropout),
       .limits = {.most = below_one}},
  };
}

}  // namespace suite::configuration
