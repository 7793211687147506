#include "suite/configuration/models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <stdexcept>

#include "suite/files/corpus.h"

namespace suite {
namespace {

struct NamedModel {
  std::string name;
  layers::GptConfig shape;
};

layers::GptConfig llama(layers::GptConfig shape, int ffn_hidden_size, int num_query_groups) {
  shape.normalization = layers::Normalization::rms_norm;
  shape.swiglu = true;
  shape.ffn_hidden_size = ffn_hidden_size;
  shape.position_embedding_type = layers::PositionEmbedding::rope;
  shape.group_query_attention = true;
  shape.num_query_groups = num_query_groups;
  shape.disable_bias_linear = true;
  shape.untie_embeddings_and_output_weights = true;
  return shape;
}

layers::GptConfig bert(layers::GptConfig shape) {
  shape.architecture = layers::Architecture::encoder;
  return shape;
}

// layers: of both stacks.
layers::GptConfig t5(layers::GptConfig shape) {
  shape.architecture = layers::Architecture::encoder_decoder;
  shape.position_embedding_type = layers::PositionEmbedding::relative;
  shape.normalization = layers::Normalization::rms_norm;
  shape.disable_bias_linear = true;
  return shape;
}

layers::GptConfig with_experts(layers::GptConfig shape, int num_experts, double aux_loss_coeff,
                               double z_loss_coeff = 0) {
  shape.moe.num_experts = num_experts;
  shape.moe.aux_loss_coeff = aux_loss_coeff;
  shape.moe.z_loss_coeff = z_loss_coeff;
  shape.moe.token_dispatcher_type = layers::TokenDispatcherType::alltoall;
  return shape;
}

const std::vector<NamedModel>& models() {
  constexpr int bytes = Corpus::vocabulary;
  constexpr int bytes_and_mask =
      384;  // the mask is the last token (trainer/tokens/encoder_examples.h)
  static const std::vector<NamedModel> table{
      {"tiny", {.layers = 2, .hidden = 32, .heads = 4, .vocabulary = bytes, .sequence = 32}},
      {"small", {.layers = 4, .hidden = 64, .heads = 4, .vocabulary = bytes, .sequence = 64}},
      {"gpt2_124m",
       {.layers = 12, .hidden = 768, .heads = 12, .vocabulary = 50257, .sequence = 1024}},
      {"gpt2_1558m",
       {.layers = 48, .hidden = 1600, .heads = 25, .vocabulary = 50257, .sequence = 1024}},
      {"bert_tiny",
       bert({.layers = 2, .hidden = 32, .heads = 4, .vocabulary = bytes_and_mask, .sequence = 32})},
      {"bert_base",
       bert({.layers = 12, .hidden = 768, .heads = 12, .vocabulary = 30522, .sequence = 512})},
      {"bert_large",
       bert({.layers = 24, .hidden = 1024, .heads = 16, .vocabulary = 30522, .sequence = 512})},
      {"t5_tiny", t5({.layers = 4, .hidden = 32, .heads = 4, .vocabulary = bytes, .sequence = 32})},
      {"t5_small",
       t5({.layers = 12, .hidden = 512, .heads = 8, .vocabulary = 32128, .sequence = 512})},
      {"t5_base",
       t5({.layers = 24, .hidden = 768, .heads = 12, .vocabulary = 32128, .sequence = 512})},
      {"t5_large",
       t5({.layers = 48, .hidden = 1024, .heads = 16, .vocabulary = 32128, .sequence = 512})},
      {"llama_tiny",
       llama({.layers = 2, .hidden = 32, .heads = 8, .vocabulary = bytes, .sequence = 32}, 96, 4)},
      {"llama2_7b",
       llama({.layers = 32, .hidden = 4096, .heads = 32, .vocabulary = 32000, .sequence = 4096},
             11008, 32)},
      {"llama2_13b",
       llama({.layers = 40, .hidden = 5120, .heads = 40, .vocabulary = 32000, .sequence = 4096},
             13824, 40)},
      {"llama2_70b",
       llama({.layers = 80, .hidden = 8192, .heads = 64, .vocabulary = 32000, .sequence = 4096},
             28672, 8)},
      {"moe_tiny",
       with_experts({.layers = 2, .hidden = 32, .heads = 4, .vocabulary = bytes, .sequence = 32}, 4,
                    0.01, 0.001)},
      {"mixtral_8x7b",
       with_experts(
           llama({.layers = 32, .hidden = 4096, .heads = 32, .vocabulary = 32000, .sequence = 4096},
                 14336, 8),
           8, 0.02)},
      {"gpt3_175b",
       {.layers = 96, .hidden = 12288, .heads = 96, .vocabulary = 50257, .sequence = 2048}},
  };
  return table;
}

}  // namespace

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const NamedModel& model : models()) result.push_back(model.name);
    return result;
  }();
  return names;
}

TrainingConfig::Model named_model(const std::string& name) {
  for (const NamedModel& named : models()) {
    if (named.name != name) continue;
    TrainingConfig::Model model(named.shape);
    model.tokens = model.vocabulary;
    return model;
  }
  throw std::invalid_argument(
      fmt::format("unknown model '{}'; known: {}", name, fmt::join(model_names(), ", ")));
}

int padded_vocabulary(const TrainingConfig::Model& model, int tp) {
  constexpr int usual = 128;
  const int tokens = model.tokens;
  if (!model.make_vocab_size_divisible_by && tokens % usual == 0 && tokens % tp == 0) return tokens;
  const std::int64_t unit = std::int64_t{model.make_vocab_size_divisible_by.value_or(usual)} * tp;
  const std::int64_t rows = (tokens + unit - 1) / unit * unit;
  if (rows > std::numeric_limits<int>::max())
    throw std::invalid_argument(fmt::format("a vocabulary of {} rows is too large", rows));
  return static_cast<int>(rows);
}

void set_model(TrainingConfig& config, const std::string& name) {
  TrainingConfig::Model model = named_model(name);
  model.sparse = config.model.sparse;  // a setting of any model
  static_cast<layers::GptConfig&>(config.model) = model;
  config.model.tokens = model.tokens;
  complete_shape(config);
}

void complete_shape(TrainingConfig& config) {
  TrainingConfig::Model& model = config.model;
  if (model.seq_length) model.sequence = *model.seq_length;
  if (model.num_query_groups != 1) model.group_query_attention = true;
  if (model.tokens > 0) model.vocabulary = padded_vocabulary(model, config.degrees.tp);
}

}  // namespace suite
