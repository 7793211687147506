#pragma once
// The model's forward pass as plain loops in double over global parameters, which is the reference
// of the layers' tests. It is slow and simple, and shares only the names of parameters with the
// layers.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "layers/dropout.h"
#include "layers/gpt_config.h"
#include "layers/parameter.h"
#include "machine/device/random.h"

namespace layers::reference {

using Values = std::vector<double>;           // row-major
using Model = std::map<std::string, Values>;  // by parameter name

// Without a bias, `bias` is a vector of zeros.
inline Values linear(const Values& x, const Values& weight, const Values& bias) {
  const std::size_t out = bias.size(), in = weight.size() / out, rows = x.size() / in;
  Values y(rows * out);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t o = 0; o < out; ++o) {
      double sum = bias[o];
      for (std::size_t i = 0; i < in; ++i) sum += x[r * in + i] * weight[o * in + i];
      y[r * out + o] = sum;
    }
  }
  return y;
}

// Returns the bias with that name, or zeros.
inline Values bias_of(const Model& model, const std::string& name, std::size_t size) {
  const auto found = model.find(name);
  return found == model.end() ? Values(size) : found->second;
}

inline Values layer_norm(const Values& x, const Values& gain, const Values& bias, double epsilon) {
  const std::size_t h = gain.size();
  Values y(x.size());
  for (std::size_t row = 0; row < x.size(); row += h) {
    double mean = 0, variance = 0;
    for (std::size_t i = 0; i < h; ++i) mean += x[row + i] / static_cast<double>(h);
    for (std::size_t i = 0; i < h; ++i)
      variance += (x[row + i] - mean) * (x[row + i] - mean) / static_cast<double>(h);
    for (std::size_t i = 0; i < h; ++i)
      y[row + i] = gain[i] * (x[row + i] - mean) / std::sqrt(variance + epsilon) + bias[i];
  }
  return y;
}

inline Values rms_norm(const Values& x, const Values& gain, double epsilon) {
  const std::size_t h = gain.size();
  Values y(x.size());
  for (std::size_t row = 0; row < x.size(); row += h) {
    double squares = 0;
    for (std::size_t i = 0; i < h; ++i) squares += x[row + i] * x[row + i];
    for (std::size_t i = 0; i < h; ++i)
      y[row + i] = gain[i] * x[row + i] / std::sqrt(squares / static_cast<double>(h) + epsilon);
  }
  return y;
}

inline Values norm(const Values& x, const Model& model, const std::string& name,
                   const GptConfig& config) {
  const Values& gain = model.at(name + ".gain");
  return config.normalization == Normalization::rms_norm
             ? rms_norm(x, gain, config.layer_norm_epsilon)
             : layer_norm(x, gain, model.at(name + ".bias"), config.layer_norm_epsilon);
}

// Returns element i of a head at a position, after the rotation. With its partner in the other half
// it is a complex number, which is multiplied by exp(√-1 position base^(-2 pair/head)).
inline double turned(const std::vector<double>& head, std::size_t i, std::size_t position,
                     double base) {
  const std::size_t half = head.size() / 2, pair = i % half;
  const double angle =
      static_cast<double>(position) /
      std::pow(base, 2 * static_cast<double>(pair) / static_cast<double>(head.size()));
  const double real = head[pair], imaginary = head[pair + half];
  return i < half ? real * std::cos(angle) - imaginary * std::sin(angle)
                  : real * std::sin(angle) + imaginary * std::cos(angle);
}

// Rows of the qkv weight: the queries of group 0, its key, its value, then group 1, …. Without
// groups of queries, each head is a group.
// Whether a query of a head sees a key; empty: it sees every key that the mask allows.
using Sees = std::function<bool(std::size_t head, std::size_t query, std::size_t key)>;

inline Values attention(const Values& x, const Model& model, const std::string& name,
                        const GptConfig& config, const Draw& draw = {},
                        const std::vector<std::int32_t>& lengths = {}, const Sees& sees = {}) {
  const auto hidden = static_cast<std::size_t>(config.hidden);
  const auto heads = static_cast<std::size_t>(config.heads);
  const auto sequence = static_cast<std::size_t>(config.sequence);
  const std::size_t groups =
      config.group_query_attention ? static_cast<std::size_t>(config.num_query_groups) : heads;
  const std::size_t head = hidden / heads, rows = x.size() / hidden, in_group = heads / groups;
  const std::size_t width = hidden + 2 * groups * head;
  const Values qkv =
      linear(x, model.at(name + ".qkv.weight"), bias_of(model, name + ".qkv.bias", width));
  // Queries of head a, and the keys (`which` 0) and values (1) that it attends to.
  const auto vector = [&](std::size_t row, std::size_t column) {
    const auto begin = qkv.begin() + static_cast<std::ptrdiff_t>(row * width + column);
    return Values(begin, begin + static_cast<std::ptrdiff_t>(head));
  };
  const auto query = [&](std::size_t row, std::size_t a) {
    return vector(row, (a / in_group * (in_group + 2) + a % in_group) * head);
  };
  const auto shared = [&](std::size_t row, std::size_t which, std::size_t a) {
    return vector(row, (a / in_group * (in_group + 2) + in_group + which) * head);
  };
  const bool rotary = config.position_embedding_type == PositionEmbedding::rope;
  const auto at = [&](const Values& v, std::size_t i, std::size_t row) {
    return rotary ? turned(v, i, row % sequence, config.rotary_base) : v[i];
  };
  Values context(rows * hidden);
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t start = row / sequence * sequence;
    std::size_t end = row + 1;  // of the keys
    if (config.architecture == Architecture::encoder)
      end = start +
            (lengths.empty() ? sequence : static_cast<std::size_t>(lengths.at(row / sequence)));
    for (std::size_t a = 0; a < heads; ++a) {
      const Values q = query(row, a);
      Values score;
      for (std::size_t key = start; key < end; ++key) {
        const Values k = shared(key, 0, a);
        double dot = 0;
        for (std::size_t i = 0; i < head; ++i) dot += at(q, i, row) * at(k, i, key);
        score.push_back(!sees || sees(a, row - start, key - start)
                            ? dot / std::sqrt(static_cast<double>(head))
                            : -std::numeric_limits<double>::infinity());
      }
      const double largest = *std::max_element(score.begin(), score.end());
      double total = 0;
      for (double& s : score) total += s = std::exp(s - largest);
      const auto index =
          ((static_cast<std::uint64_t>(draw.first_token) / sequence + row / sequence) * heads + a) *
              sequence +
          row % sequence;
      for (std::size_t key = 0; key < score.size(); ++key) {
        const double drawn = machine::uniform(
            random_key(draw.seed, name + ".probabilities.dropout"), index * sequence + key);
        score[key] =
            drawn < config.attention_dropout ? 0 : score[key] / (1 - config.attention_dropout);
      }
      for (std::size_t key = start; key < end; ++key) {
        const Values v = shared(key, 1, a);
        for (std::size_t i = 0; i < head; ++i)
          context[row * hidden + a * head + i] += score[key - start] / total * v[i];
      }
    }
  }
  return linear(context, model.at(name + ".projection.weight"),
                bias_of(model, name + ".projection.bias", hidden));
}

// GELU in its tanh form.
inline void gelu(Values& x) {
  constexpr double pi = 3.14159265358979323846;
  for (double& v : x) v = 0.5 * v * (1 + std::tanh(std::sqrt(2 / pi) * (v + 0.044715 * v * v * v)));
}

// Rows of fc1 with SwiGLU: the gate, then the same number of gated rows.
inline Values mlp(const Values& x, const Model& model, const std::string& name,
                  const GptConfig& config) {
  const auto hidden = static_cast<std::size_t>(config.hidden);
  const Values& weight = model.at(name + ".fc1.weight");
  Values inner = linear(x, weight, bias_of(model, name + ".fc1.bias", weight.size() / hidden));
  if (config.swiglu) {
    const std::size_t rows = x.size() / hidden, ffn = weight.size() / hidden / 2;
    Values gated;
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t i = 0; i < ffn; ++i) {
        const double gate = inner[row * 2 * ffn + i];
        gated.push_back(gate / (1 + std::exp(-gate)) * inner[row * 2 * ffn + ffn + i]);
      }
    inner = gated;
  } else {
    gelu(inner);
  }
  return linear(inner, model.at(name + ".fc2.weight"), bias_of(model, name + ".fc2.bias", hidden));
}

inline void drop(Values& x, const std::string& name, const GptConfig& config, const Draw& draw) {
  const auto first = static_cast<std::uint64_t>(draw.first_token * config.hidden);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double drawn = machine::uniform(random_key(draw.seed, name + ".dropout"), first + i);
    x[i] = drawn < config.hidden_dropout ? 0 : x[i] / (1 - config.hidden_dropout);
  }
}

inline Values block(const Values& x, const Model& model, const std::string& name,
                    const GptConfig& config, const Draw& draw = {},
                    const std::vector<std::int32_t>& lengths = {}) {
  Values residual = attention(norm(x, model, name + ".norm1", config), model, name + ".attention",
                              config, draw, lengths);
  drop(residual, name + ".attention", config, draw);
  for (std::size_t i = 0; i < x.size(); ++i) residual[i] += x[i];
  Values y = mlp(norm(residual, model, name + ".norm2", config), model, name + ".mlp", config);
  drop(y, name + ".mlp", config, draw);
  for (std::size_t i = 0; i < x.size(); ++i) y[i] += residual[i];
  return y;
}

// Returns the sum of the token losses after the last block. Tokens with a negative target do not
// count.
inline double loss(const Values& x, const Model& model, const std::vector<std::int32_t>& targets,
                   const GptConfig& config) {
  const char* output =
      config.untie_embeddings_and_output_weights ? "head.output.weight" : "embedding.token.weight";
  Values features = norm(x, model, "head.norm", config);
  if (config.architecture == Architecture::encoder) {
    features = linear(features, model.at("head.transform.weight"), model.at("head.transform.bias"));
    gelu(features);
    features = norm(features, model, "head.transform.norm", config);
  }
  const Values logits =
      linear(features, model.at(output),
             bias_of(model, "head.output.bias", static_cast<std::size_t>(config.vocabulary)));
  const auto vocabulary = static_cast<std::size_t>(config.vocabulary);
  double sum = 0;
  for (std::size_t row = 0; row < targets.size(); ++row) {
    if (targets[row] < 0) continue;
    double total = 0;
    for (std::size_t v = 0; v < vocabulary; ++v) total += std::exp(logits[row * vocabulary + v]);
    sum += std::log(total) - logits[row * vocabulary + static_cast<std::size_t>(targets[row])];
  }
  return sum;
}

inline Values embedding(const Model& model, const std::vector<std::int32_t>& tokens,
                        const GptConfig& config, const std::vector<std::int32_t>& types = {}) {
  const auto h = static_cast<std::size_t>(config.hidden);
  const auto sequence = static_cast<std::size_t>(config.sequence);
  Values x;
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    for (std::size_t i = 0; i < h; ++i) {
      x.push_back(
          model.at("embedding.token.weight")[static_cast<std::size_t>(tokens[row]) * h + i]);
      if (config.position_embedding_type == PositionEmbedding::learned_absolute)
        x.back() += model.at("embedding.position.weight")[row % sequence * h + i];
      if (config.architecture == Architecture::encoder)
        x.back() += model.at("embedding.type.weight")[static_cast<std::size_t>(types[row]) * h + i];
    }
  }
  return x;
}

inline double gpt(const Model& model, const std::vector<std::int32_t>& tokens,
                  const std::vector<std::int32_t>& targets, const GptConfig& config,
                  const Draw& draw, const std::vector<std::int32_t>& types = {},
                  const std::vector<std::int32_t>& lengths = {}) {
  Values x = embedding(model, tokens, config, types);
  drop(x, "embedding", config, draw);
  for (int i = 0; i < config.layers; ++i)
    x = block(x, model, "blocks." + std::to_string(i), config, draw, lengths);
  return loss(x, model, targets, config);
}

}  // namespace layers::reference
