// Keys of the model: Megatron-LM's arguments, and --architecture, which Megatron-LM selects by the
// name of its script.

#include "suite/configuration/keys.h"
#include "suite/configuration/models.h"

namespace suite::configuration {
namespace {

using namespace predicted;

constexpr double below_one = 1 - 0x1p-53;
constexpr Limits extent() { return {.least = 1, .most = 1e7}; }

const Needs learned{"--position-embedding-type learned_absolute",
                    [](const TrainingConfig& c) { return c.model.learned_positions(); }};
const Needs rope{"--position-embedding-type rope",
                 [](const TrainingConfig& c) { return c.model.rotary(); }};
const Needs experts{"--num-experts", [](const TrainingConfig& c) { return c.model.has_experts(); }};
const Needs capacity{"--moe-expert-capacity-factor",
                     [](const TrainingConfig& c) { return c.model.moe.drops(); }};
constexpr Predicted shape = counted("products, bytes of kernels and parameters"),
                    masks = counted("whether masks are read and written; any probability");
constexpr Limits coefficient() { return {.most = 1e6}; }

}  // namespace

std::vector<Key> model_keys() {
  return {
      axis("model", "", AT(model.name), resolved, "a model by name", {.choices = model_names()}),
      axis("model-args", "", AT(model.arguments), resolved,
           "Megatron-LM's arguments that change the model: \"--swiglu --hidden-dropout 0.1\"; or "
           "none"),
      {.megatron = "--seq-length",
       .axis = "seq-length",
       .field = AT(model.seq_length),
       .predicted = resolved,
       .limits = extent(),
       .unset = "model",
       .about = "tokens of a sequence; model: the model's own"},
      row("--num-layers", "", AT(model.layers), shape, {.least = 1, .most = 1e5}),
      row("--hidden-size", "", AT(model.hidden), shape, {.least = 1, .most = 1e6}),
      row("--ffn-hidden-size", "", AT(model.ffn_hidden_size), shape, extent()),
      row("--num-attention-heads", "", AT(model.heads), shape, {.least = 1, .most = 1e6}),
      row("--group-query-attention", "", AT(model.group_query_attention), resolved),
      row("--num-query-groups", "", AT(model.num_query_groups), shape, {.least = 1, .most = 1e6})
          .also({"--num-key-value-heads"}),
      row("--vocab-size", "vocabulary_size", AT(model.tokens), resolved, {.least = 1, .most = 1e9}),
      row("--make-vocab-size-divisible-by", "", AT(model.make_vocab_size_divisible_by), resolved,
          extent()),
      {.megatron = "--max-position-embeddings",
       .field = AT(model.max_position_embeddings),
       .predicted = shape,
       .limits = extent(),
       .needs = &learned,
       .effect = Effect::planned,
       .why = "a step's table of positions has --seq-length rows",
       .in_step =
           [](const TrainingConfig& c) {
             return c.model.max_position_embeddings == 0 ||
                    c.model.max_position_embeddings == c.model.sequence;
           }},
      row("--architecture", "", NAMED(model.architecture, layers::architecture), shape,
          {.choices = {"decoder", "encoder", "encoder-decoder"}}),
      row("--swiglu", "", AT(model.swiglu), shape),
      row("--disable-bias-linear", "", AT(model.disable_bias_linear), shape),
      row("--untie-embeddings-and-output-weights", "",
          AT(model.untie_embeddings_and_output_weights), shape),
      row("--normalization", "", NAMED(model.normalization, layers::normalization), shape,
          {.choices = {"LayerNorm", "RMSNorm"}}),
      row("--norm-epsilon", "", AT(model.layer_norm_epsilon), numbers, {.least = 1e-300, .most = 1})
          .also({"--layernorm-epsilon"}),
      row("--position-embedding-type", "",
          NAMED(model.position_embedding_type, layers::position_embedding_type), shape,
          {.choices = {"learned_absolute", "rope", "relative"}})
          .also(selecting("rope", "--use-rotary-position-embeddings")),
      row("--rotary-base", "", AT(model.rotary_base), numbers, {.least = 1, .most = 1e15}, &rope)
          .also({"--rotary-position-embeddings-theta"}),
      row("--hidden-dropout", "", AT(model.hidden_dropout), masks, {.most = below_one}),
      row("--attention-dropout", "", AT(model.attention_dropout), masks, {.most = below_one}),
      row("--num-experts", "", AT(model.moe.num_experts), of_experts, {.least = 1, .most = 1e5}),
      row("--moe-layer-freq", "", AT(model.moe_layer_freq), of_experts, {.least = 1, .most = 1e5},
          &experts),
      row("--moe-ffn-hidden-size", "", AT(model.moe.ffn_hidden_size), of_experts, extent(),
          &experts),
      row("--moe-shared-expert-intermediate-size", "",
          AT(model.moe.shared_expert_intermediate_size), of_experts, extent(), &experts),
      row("--moe-router-topk", "", AT(model.moe.topk), of_experts, {.least = 1, .most = 1e5},
          &experts),
      row("--moe-router-pre-softmax", "", AT(model.moe.pre_softmax), numbers, {}, &experts),
      row("--moe-router-load-balancing-type", "",
          NAMED(model.moe.load_balancing, layers::load_balancing), of_experts,
          {.choices = {"none", "aux_loss", "sinkhorn"}}, &experts),
      row("--moe-aux-loss-coeff", "", AT(model.moe.aux_loss_coeff), of_experts, coefficient(),
          &experts),
      row("--moe-z-loss-coeff", "", AT(model.moe.z_loss_coeff), numbers, coefficient(), &experts),
      row("--moe-expert-capacity-factor", "", AT(model.moe.expert_capacity_factor), of_experts,
          coefficient(), &experts),
      row("--moe-token-drop-policy", "",
          NAMED(model.moe.token_drop_policy, layers::token_drop_policy), numbers,
          {.choices = {"probs", "position"}}, &capacity),
      row("--moe-pad-expert-input-to-capacity", "", AT(model.moe.pad_expert_input_to_capacity),
          of_experts, {}, &capacity),
      row("--moe-token-dispatcher-type", "",
          NAMED(model.moe.token_dispatcher_type, layers::token_dispatcher_type), of_experts,
          {.choices = {"alltoall", "allgather"}}, &experts),
  };
}

}  // namespace suite::configuration
