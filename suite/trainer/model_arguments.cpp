#include "suite/trainer/model_arguments.h"

#include <fmt/format.h>

#include <charconv>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "machine/base/names.h"

namespace suite {
namespace {

using layers::GptConfig;

// A bool is switched on by its name alone.
using Field =
    std::variant<bool GptConfig::*, int GptConfig::*, double GptConfig::*,
                 layers::Normalization GptConfig::*, layers::PositionEmbedding GptConfig::*>;
struct Argument {
  const char* name;
  Field field;
};
const Argument arguments[] = {
    {"num-layers", &GptConfig::layers},
    {"hidden-size", &GptConfig::hidden},
    {"num-attention-heads", &GptConfig::heads},
    {"ffn-hidden-size", &GptConfig::ffn_hidden_size},
    {"normalization", &GptConfig::normalization},
    {"norm-epsilon", &GptConfig::layer_norm_epsilon},
    {"swiglu", &GptConfig::swiglu},
    {"position-embedding-type", &GptConfig::position_embedding_type},
    {"rotary-base", &GptConfig::rotary_base},
    {"group-query-attention", &GptConfig::group_query_attention},
    {"num-query-groups", &GptConfig::num_query_groups},
    {"disable-bias-linear", &GptConfig::disable_bias_linear},
    {"untie-embeddings-and-output-weights", &GptConfig::untie_embeddings_and_output_weights},
    {"hidden-dropout", &GptConfig::hidden_dropout},
    {"attention-dropout", &GptConfig::attention_dropout},
};

const Argument& argument_of(const std::string& name) {
  std::vector<std::string> names;
  for (const Argument& argument : arguments) {
    if (argument.name == name) return argument;
    names.emplace_back(argument.name);
  }
  throw std::invalid_argument(machine::unknown("model argument", name, names));
}

void read(const char*, const std::string& text, layers::Normalization& value) {
  value = layers::normalization(text);
}
void read(const char*, const std::string& text, layers::PositionEmbedding& value) {
  value = layers::position_embedding_type(text);
}
template <class Number>
void read(const char* key, const std::string& text, Number& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end)
    throw std::invalid_argument(fmt::format("model-args: {} '{}' is no {}number", key, text,
                                            std::is_same_v<Number, int> ? "whole " : ""));
}

std::vector<std::string> words_of(std::string_view text) {
  std::istringstream stream{std::string(text)};
  std::vector<std::string> words;
  for (std::string word; stream >> word;) {
    const std::size_t equal = word.find('=');
    words.push_back(word.substr(0, equal));
    if (equal != std::string::npos) words.push_back(word.substr(equal + 1));
  }
  return words;
}

}  // namespace

void apply_model_arguments(GptConfig& model, std::string_view text) {
  if (text == "none") return;
  const std::vector<std::string> words = words_of(text);
  for (std::size_t at = 0; at < words.size(); ++at) {
    const std::string& word = words[at];
    const Argument& argument = argument_of(word.starts_with("--") ? word.substr(2) : word);
    std::visit(
        [&](auto field) {
          if constexpr (std::is_same_v<decltype(field), bool GptConfig::*>) {
            model.*field = true;
          } else {
            if (++at == words.size())
              throw std::invalid_argument(
                  fmt::format("model-args: {} lacks its value", argument.name));
            read(argument.name, words[at], model.*field);
          }
        },
        argument.field);
  }
}

}  // namespace suite
