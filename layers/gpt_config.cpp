#include "layers/gpt_config.h"

#include <cmath>
#include <cstdlib>
#include <numeric>

#include "machine/base/names.h"
#include "machine/base/reject.h"

namespace layers {
namespace {

// Returns the valid divisor of `number` nearest to `wanted`, the smaller of two equally near ones.
template <class Suits>
int nearest_divisor(int number, int wanted, const Suits& suits) {
  int nearest = 1;
  for (int divisor = 1; divisor <= number; ++divisor) {
    if (number % divisor == 0 && suits(divisor) &&
        std::abs(divisor - wanted) < std::abs(nearest - wanted))
      nearest = divisor;
  }
  return nearest;
}
int nearest_divisor(int number, int wanted) {
  return nearest_divisor(number, wanted, [](int) { return true; });
}

void check_positive(std::string_view key, double value) {
  if (!(value > 0)) machine::reject("{} is {}; expected more than 0", key, value);
}

void check_divides(std::string_view key, int value, std::string_view whole_key, int whole) {
  if (value < 1 || whole % value != 0)
    machine::reject("{} is {}; expected a divisor of {} {} (example: {})", key, value, whole_key,
                    whole, nearest_divisor(whole, value));
}

void check_groups(const GptConfig& c) {
  if (!c.group_query_attention && c.num_query_groups != 1)
    machine::reject("num-query-groups is {}; expected 1 without group-query-attention",
                    c.num_query_groups);
  check_divides("num-query-groups", c.num_query_groups, "heads", c.heads);
}

void check_positions(const GptConfig& c) {
  check_positive("rotary-base", c.rotary_base);
  if (!c.rotary() && c.rotary_base != GptConfig().rotary_base)
    machine::reject("rotary-base is {}; expected {} with position-embedding-type {}", c.rotary_base,
                    GptConfig().rotary_base, name(c.position_embedding_type));
  if (c.rotary() && c.head() % 2 != 0)
    machine::reject(
        "heads is {}; position-embedding-type rope expects an even size of a head, but hidden {} / "
        "{} is odd (example: {})",
        c.heads, c.hidden, c.heads,
        nearest_divisor(c.hidden, c.heads, [&](int heads) { return c.hidden / heads % 2 == 0; }));
}

void check_architecture(const GptConfig& c) {
  if (c.relative() != c.encoder_decoder())
    machine::reject("position-embedding-type is {}; expected {} with architecture {}",
                    name(c.position_embedding_type),
                    c.encoder_decoder() ? "relative" : "learned_absolute or rope",
                    name(c.architecture));
  if (!c.encoder_decoder()) return;
  if (c.layers % 2 != 0)
    machine::reject("num-layers is {}; expected an even number with architecture {}", c.layers,
                    name(c.architecture));
  if (c.query_groups() != c.heads)
    machine::reject("architecture {} does not support group-query-attention", name(c.architecture));
}

void check_dropout(std::string_view key, double probability) {
  if (!(probability >= 0 && probability < 1))
    machine::reject("{} is {}; expected at least 0 and below 1 (example: {})", key, probability,
                    probability >= 1 ? 0.9 : 0.0);
}

void check_experts(const GptConfig& c, int tp) {
  if (!c.has_experts()) return;
  if (c.architecture != Architecture::decoder)
    machine::reject("num-experts requires architecture decoder (got {})", name(c.architecture));
  if (c.moe_layer_freq < 1 || c.moe_layer_freq > c.layers)
    machine::reject("moe-layer-freq is {}; expected 1 to num-layers {}", c.moe_layer_freq,
                    c.layers);
  const MoeConfig mixture = c.mixture();
  for (const auto& [key, width] :
       {std::pair("moe-ffn-hidden-size", mixture.ffn_hidden_size),
        {"moe-shared-expert-intermediate-size", mixture.shared_expert_intermediate_size}})
    check_divides("tp", tp, key, static_cast<int>(width));
  mixture.validate();
}

}  // namespace

std::string_view name(Normalization normalization) {
  return normalization == Normalization::layer_norm ? "LayerNorm" : "RMSNorm";
}

std::string_view name(PositionEmbedding position_embedding) {
  constexpr std::string_view names[] = {"learned_absolute", "rope", "relative"};
  return names[static_cast<std::size_t>(position_embedding)];
}

std::string_view name(Architecture architecture) {
  constexpr std::string_view names[] = {"decoder", "encoder", "encoder-decoder"};
  return names[static_cast<std::size_t>(architecture)];
}

Normalization normalization(std::string_view text) {
  return machine::named("normalization", text,
                        {Normalization::layer_norm, Normalization::rms_norm});
}

PositionEmbedding position_embedding_type(std::string_view text) {
  return machine::named(
      "position-embedding-type", text,
      {PositionEmbedding::learned_absolute, PositionEmbedding::rope, PositionEmbedding::relative});
}

Architecture architecture(std::string_view text) {
  return machine::named(
      "architecture", text,
      {Architecture::decoder, Architecture::encoder, Architecture::encoder_decoder});
}

// Megatron-LM's default: the three matrices of SwiGLU have about as many parameters as two matrices
// of 4 hidden.
int GptConfig::ffn() const {
  if (ffn_hidden_size != 0) return ffn_hidden_size;
  return swiglu ? hidden / 24 * 64 : 4 * hidden;
}

int GptConfig::moe_layers() const {
  return has_experts() ? (layers + moe_layer_freq - 1) / moe_layer_freq : 0;
}

MoeConfig GptConfig::mixture() const {
  MoeConfig result = moe;
  result.hidden = hidden;
  result.swiglu = swiglu;
  result.bias = !disable_bias_linear;
  if (result.ffn_hidden_size == 0) result.ffn_hidden_size = ffn();
  return result;
}

SparseOptions GptConfig::sparse_options() const {
  SparseOptions options = sparse;
  options.pattern.unidirectional = !encoder();
  return options;
}

void GptConfig::validate_sparse() const {
  if (!sparse.on()) return;
  const int block = sparse.block;
  if (encoder_decoder())
    machine::reject(
        "sparse_attention requires architecture decoder or encoder, because a layout has no "
        "relative bias (got encoder-decoder)");
  if (block < 16 || block % 16 != 0)
    machine::reject("sparse_attention.block is {}; expected a multiple of 16 (example: {})", block,
                    std::max(1, block / 16) * 16);
  if (sequence % block != 0)
    machine::reject(
        "seq-length is {}; expected a multiple of sparse_attention.block {} (example: {})",
        sequence, block, (sequence / block + 1) * block);
  try {
    layers::validate(sparse_options().pattern, heads, sequence / block);
  } catch (const std::invalid_argument& error) {
    machine::reject("sparse_attention.{}", error.what());
  }
}

void GptConfig::validate(int tp, int pp) const {
  check_positive("layers", layers);
  check_positive("hidden", hidden);
  check_positive("heads", heads);
  check_positive("vocabulary", vocabulary);
  check_positive("sequence", sequence);
  check_positive("layer_norm_epsilon", layer_norm_epsilon);
  check_positive("tp", tp);
  check_positive("pp", pp);
  check_divides("heads", heads, "hidden", hidden);
  check_groups(*this);
  check_positions(*this);
  check_architecture(*this);
  check_dropout("hidden-dropout", hidden_dropout);
  check_dropout("attention-dropout", attention_dropout);
  validate_sparse();
  if (ffn() < 1)
    machine::reject(
        "ffn-hidden-size is {}{}; expected more than 0", ffn_hidden_size,
        ffn_hidden_size == 0 ? fmt::format(" (unset: swiglu makes 0 of hidden {})", hidden) : "");
  const int tp_valid =
      nearest_divisor(std::gcd(std::gcd(heads, vocabulary), std::gcd(query_groups(), ffn())), tp);
  for (const auto& [key, value] : {std::pair("heads", heads),
                                   {"num-query-groups", query_groups()},
                                   {"ffn-hidden-size", ffn()}})
    if (value % tp != 0)
      machine::reject("tp is {}; expected a divisor of {} {} (example: {})", tp, key, value,
                      tp_valid);
  if (vocabulary % tp != 0)
    machine::reject(
        "tp is {}; expected a divisor of vocabulary {}; pad vocabulary to {}, or use tp {}", tp,
        vocabulary, (vocabulary + tp - 1) / tp * tp, tp_valid);
  check_divides("pp", pp, "layers", layers);
  check_experts(*this, tp);
}

}  // namespace layers
