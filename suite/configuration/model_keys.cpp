// Keys of the model: Megatron-LM's arguments, and --architecture, which Megatron-LM selects by the
// name of its script.

#include "suite/configuration/keys.h"
#include "suite/configuration/models.h"

namespace suite::configuration {
namespace {

constexpr double below_one = 1 - 0x1p-53;
constexpr Limits extent() { return {.least = 1, .most = 1e7}; }

const Needs learned{"--position-embedding-type learned_absolute",
                    [](const TrainingConfig& c) { return c.model.learned_positions(); }};
const Needs rope{"--position-embedding-type rope",
                 [](const TrainingConfig& c) { return c.model.rotary(); }};
const Needs experts{"--num-experts", [](const TrainingConfig& c) { return c.model.has_experts(); }};
const Needs capacity{"--moe-expert-capacity-factor",
                     [](const TrainingConfig& c) { return c.model.moe.drops(); }};
constexpr Limits coefficient() { return {.most = 1e6}; }

}  // namespace

std::vector<Key> model_keys() {
  return {
      axis("model", "", AT(model.name), "a model by name", {.choices = model_names()}),
      axis("model-args", "", AT(model.arguments),
           "Megatron-LM's arguments that change the model: \"--swiglu --hidden-dropout 0.1\"; or "
           "none"),
      {.megatron = "--seq-length",
       .axis = "seq-length",
       .field = AT(model.seq_length),
       .limits = extent(),
       .unset = "model",
       .about = "tokens of a sequence; model: the model's own"},
      row("--num-layers", "", AT(model.layers), {.least = 1, .most = 1e5}),
      row("--hidden-size", "", AT(model.hidden), {.least = 1, .most = 1e6}),
      row("--ffn-hidden-size", "", AT(model.ffn_hidden_size), extent()),
      row("--num-attention-heads", "", AT(model.heads), {.least = 1, .most = 1e6}),
      row("--group-query-attention", "", AT(model.group_query_attention)),
      row("--num-query-groups", "", AT(model.num_query_groups), {.least = 1, .most = 1e6}),
      row("--vocab-size", "vocabulary_size", AT(model.tokens), {.least = 1, .most = 1e9}),
      row("--make-vocab-size-divisible-by", "", AT(model.make_vocab_size_divisible_by), extent()),
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
      row("--architecture", "", AT(model.architecture),
          {.choices = {"decoder", "encoder", "encoder-decoder"}}),
      row("--swiglu", "", AT(model.swiglu)),
      row("--disable-bias-linear", "", AT(model.disable_bias_linear)),
      row("--untie-embeddings-and-output-weights", "",
          AT(model.untie_embeddings_and_output_weights)),
      row("--normalization", "", AT(model.normalization), {.choices = {"LayerNorm", "RMSNorm"}}),
      row("--norm-epsilon", "", AT(model.layer_norm_epsilon), {.least = 1e-300, .most = 1}),
      row("--position-embedding-type", "", AT(model.position_embedding_type),
          {.choices = {"learned_absolute", "rope", "relative"}}),
      row("--rotary-base", "", AT(model.rotary_base), {.least = 1, .most = 1e15}, &rope),
      row("--hidden-dropout", "", AT(model.hidden_dropout), {.most = below_one}),
      row("--attention-dropout", "", AT(model.attention_dropout), {.most = below_one}),
      row("--num-experts", "", AT(model.moe.num_experts), {.least = 1, .most = 1e5}),
      row("--moe-layer-freq", "", AT(model.moe_layer_freq), {.least = 1, .most = 1e5}, &experts),
      row("--moe-ffn-hidden-size", "", AT(model.moe.ffn_hidden_size), extent(), &experts),
      row("--moe-shared-expert-intermediate-size", "",
          AT(model.moe.shared_expert_intermediate_size), extent(), &experts),
      row("--moe-router-topk", "", AT(model.moe.topk), {.least = 1, .most = 1e5}, &experts),
      row("--moe-router-pre-softmax", "", AT(model.moe.pre_softmax), {}, &experts),
      row("--moe-router-load-balancing-type", "", AT(model.moe.load_balancing),
          {.choices = {"none", "aux_loss", "sinkhorn"}}, &experts),
      row("--moe-aux-loss-coeff", "", AT(model.moe.aux_loss_coeff), coefficient(), &experts),
      row("--moe-z-loss-coeff", "", AT(model.moe.z_loss_coeff), coefficient(), &experts),
      row("--moe-expert-capacity-factor", "", AT(model.moe.expert_capacity_factor), coefficient(),
          &experts),
      row("--moe-token-drop-policy", "", AT(model.moe.token_drop_policy),
          {.choices = {"probs", "position"}}, &capacity),
      row("--moe-pad-expert-input-to-capacity", "", AT(model.moe.pad_expert_input_to_capacity), {},
          &capacity),
      row("--moe-token-dispatcher-type", "", AT(model.moe.token_dispatcher_type),
          {.choices = {"alltoall", "allgather"}}, &experts),
  };
}

}  // namespace suite::configuration
