#pragma once
// The model's forward pass as plain loops in double over global parameters: what the layers' tests
// judge by. Slow and obvious; shares nothing with the layers but the parameters' names.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "layers/gpt_config.h"

namespace layers::reference {

using Values = std::vector<double>;           // row-major
using Model = std::map<std::string, Values>;  // by parameter name

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

// qkv weight rows: query, key and value of head 0, then of head 1, …
inline Values attention(const Values& x, const Model& model, const std::string& name,
                        const GptConfig& config) {
  const auto hidden = static_cast<std::size_t>(config.hidden);
  const auto heads = static_cast<std::size_t>(config.heads);
  const auto sequence = static_cast<std::size_t>(config.sequence);
  const std::size_t head = hidden / heads, rows = x.size() / hidden;
  const Values qkv = linear(x, model.at(name + ".qkv.weight"), model.at(name + ".qkv.bias"));
  const auto part = [&](std::size_t row, std::size_t which, std::size_t a, std::size_t i) {
    return qkv[row * 3 * hidden + (a * 3 + which) * head + i];
  };
  Values context(rows * hidden);
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t start = row / sequence * sequence;
    for (std::size_t a = 0; a < heads; ++a) {
      Values score;
      for (std::size_t key = start; key <= row; ++key) {
        double dot = 0;
        for (std::size_t i = 0; i < head; ++i) dot += part(row, 0, a, i) * part(key, 1, a, i);
        score.push_back(dot / std::sqrt(static_cast<double>(head)));
      }
      const double largest = *std::max_element(score.begin(), score.end());
      double total = 0;
      for (double& s : score) total += s = std::exp(s - largest);
      for (std::size_t key = start; key <= row; ++key) {
        for (std::size_t i = 0; i < head; ++i) {
          context[row * hidden + a * head + i] += score[key - start] / total * part(key, 2, a, i);
        }
      }
    }
  }
  return linear(context, model.at(name + ".projection.weight"),
                model.at(name + ".projection.bias"));
}

inline Values mlp(const Values& x, const Model& model, const std::string& name) {
  Values inner = linear(x, model.at(name + ".fc1.weight"), model.at(name + ".fc1.bias"));
  for (double& v : inner) {
    constexpr double pi = 3.14159265358979323846;
    v = 0.5 * v * (1 + std::tanh(std::sqrt(2 / pi) * (v + 0.044715 * v * v * v)));
  }
  return linear(inner, model.at(name + ".fc2.weight"), model.at(name + ".fc2.bias"));
}

inline Values block(const Values& x, const Model& model, const std::string& name,
                    const GptConfig& config) {
  const auto norm = [&](const Values& v, const std::string& which) {
    return layer_norm(v, model.at(name + which + ".gain"), model.at(name + which + ".bias"),
                      config.layer_norm_epsilon);
  };
  Values residual = attention(norm(x, ".norm1"), model, name + ".attention", config);
  for (std::size_t i = 0; i < x.size(); ++i) residual[i] += x[i];
  Values y = mlp(norm(residual, ".norm2"), model, name + ".mlp");
  for (std::size_t i = 0; i < x.size(); ++i) y[i] += residual[i];
  return y;
}

// Sum of the token losses after the last block.
inline double loss(const Values& x, const Model& model, const std::vector<std::int32_t>& targets,
                   const GptConfig& config) {
  const Values norm = layer_norm(x, model.at("head.norm.gain"), model.at("head.norm.bias"),
                                 config.layer_norm_epsilon);
  const Values logits = linear(norm, model.at("embedding.token.weight"),
                               Values(static_cast<std::size_t>(config.vocabulary), 0.0));
  const auto vocabulary = static_cast<std::size_t>(config.vocabulary);
  double sum = 0;
  for (std::size_t row = 0; row < targets.size(); ++row) {
    double total = 0;
    for (std::size_t v = 0; v < vocabulary; ++v) total += std::exp(logits[row * vocabulary + v]);
    sum += std::log(total) - logits[row * vocabulary + static_cast<std::size_t>(targets[row])];
  }
  return sum;
}

inline Values embedding(const Model& model, const std::vector<std::int32_t>& tokens,
                        const GptConfig& config) {
  const auto h = static_cast<std::size_t>(config.hidden);
  const auto sequence = static_cast<std::size_t>(config.sequence);
  Values x;
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    for (std::size_t i = 0; i < h; ++i) {
      x.push_back(
          model.at("embedding.token.weight")[static_cast<std::size_t>(tokens[row]) * h + i] +
          model.at("embedding.position.weight")[row % sequence * h + i]);
    }
  }
  return x;
}

inline double gpt(const Model& model, const std::vector<std::int32_t>& tokens,
                  const std::vector<std::int32_t>& targets, const GptConfig& config) {
  Values x = embedding(model, tokens, config);
  for (int i = 0; i < config.layers; ++i)
    x = block(x, model, "blocks." + std::to_string(i), config);
  return loss(x, model, targets, config);
}

}  // namespace layers::reference
