#include "suite/reference/plain/training.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "machine/device/random.h"

namespace suite::plain {

namespace {

using Rows = std::vector<double>;

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

// c [m, n] += a b, with a(i, j) at a[i * row + j * column] and b [k, n].
void add_product(Rows& c, const Rows& a, std::int64_t row, std::int64_t column, const Rows& b,
                 std::int64_t m, std::int64_t k, std::int64_t n) {
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < k; ++j) {
      const double factor = a[index(i * row + j * column)];
      const double* const from = b.data() + j * n;
      double* const to = c.data() + i * n;
      for (std::int64_t l = 0; l < n; ++l) to[l] += factor * from[l];
    }
}

// x [m, k] wᵀ, w [n, k].
Rows times_transposed(const Rows& x, const Rows& w, std::int64_t m, std::int64_t k,
                      std::int64_t n) {
  Rows transposed(index(k * n)), y(index(m * n));
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < k; ++j) transposed[index(j * n + i)] = w[index(i * k + j)];
  add_product(y, x, k, 1, transposed, m, k, n);
  return y;
}

// Box and Muller 1958.
double normal(std::uint64_t key, std::int64_t i) {
  const auto words = machine::philox(key, static_cast<std::uint64_t>(i));
  const double radius = std::sqrt(-2 * std::log((words[0] + 1.0) / 4294967296.0));
  return radius * std::cos(2 * std::numbers::pi * (words[1] / 4294967296.0));
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// GELU in its tanh form.
Rows gelu(const Rows& inner) {
  Rows active(inner.size());
  for (std::size_t i = 0; i < active.size(); ++i) {
    const double x = inner[i];
    const double u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
    active[i] = 0.5 * x * (1 + std::tanh(u));
  }
  return active;
}

Rows gelu_backward(const Rows& inner, const Rows& d_active) {
  Rows d_inner(inner.size());
  for (std::size_t i = 0; i < d_inner.size(); ++i) {
    const double x = inner[i], c = std::sqrt(2 / std::numbers::pi);
    const double t = std::tanh(c * (x + 0.044715 * x * x * x));
    d_inner[i] =
        d_active[i] * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x));
  }
  return d_inner;
}

void add(Rows& to, const Rows& from) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

}  // namespace

double Model::scale() const {
  return encoder_decoder ? 1 : 1 / std::sqrt(static_cast<double>(head()));
}

double Model::flops(std::int64_t tokens) const {
  const double cross = encoder_decoder ? 2.0 * hidden : 0;  // mean over the layers of both stacks
  const double block =
      static_cast<double>(hidden) * (qkv() + hidden + cross + (swiglu ? 3.0 : 2.0) * ffn);
  const double attention = static_cast<double>(hidden) * sequence *
                           (encoder_decoder ? 2.5
                            : encoder       ? 2
                                            : 1);
  const double head = static_cast<double>(hidden) * (table_rows + (encoder ? hidden : 0));
  return 6.0 * static_cast<double>(tokens) * (layers * (block + attention) + head);
}

Training::Training(const Model& model, const Rule& rule, std::uint64_t seed)
    : model_(model), rule_(rule), seed_(seed) {
  constexpr double weight = 0.02;
  const double residual = weight / std::sqrt(2.0 * model.layers);
  const std::int64_t hidden = model.hidden;
  declare_matrix("embedding.token.weight", model.table_rows, hidden, weight, false);
  if (model.has_positions())
    declare_matrix("embedding.position.weight", model.sequence, hidden, weight, false);
  if (model.encoder_decoder)
    for (const char* stack : {"encoder", "decoder"})
      declare_matrix("embedding." + std::string(stack) + "_bias.weight", model.heads,
                     Model::buckets, weight, false);
  if (model.encoder) declare_matrix("embedding.type.weight", 2, hidden, weight, false);
  for (int i = 0; i < model.layers; ++i) {
    const std::string block = "blocks." + std::to_string(i);
    declare_norm(block + ".norm1");
    declare_linear(block + ".attention.qkv", model.qkv(), hidden, weight);
    if (rule.muon.splits_qkv)
      parameters_[block + ".attention.qkv.weight"].parts = {
          model.heads / model.groups * model.head(), model.head(), model.head()};
    declare_linear(block + ".attention.projection", hidden, hidden, residual);
    if (model.crosses(i)) {
      declare_norm(block + ".cross_norm");
      declare_linear(block + ".cross.q", hidden, hidden, weight);
      declare_linear(block + ".cross.kv", 2 * hidden, hidden, weight);
      declare_linear(block + ".cross.projection", hidden, hidden, residual);
    }
    if (model.ends_encoder(i)) declare_norm(block + ".end");
    declare_norm(block + ".norm2");
    if (model.has_experts(i)) {
      declare_experts(block + ".moe", weight, residual);
      continue;
    }
    declare_linear(block + ".mlp.fc1", (model.swiglu ? 2 : 1) * model.ffn, hidden, weight);
    declare_linear(block + ".mlp.fc2", hidden, model.ffn, residual);
  }
  declare_norm("head.norm");
  if (model.encoder) {
    declare_matrix("head.transform.weight", hidden, hidden, weight);
    declare("head.transform.bias", hidden, 0, 0.1, false);
    declare_norm("head.transform.norm");
    declare("head.output.bias", model.table_rows, 0, 0.1, false);
  }
  if (!model.tied) declare_matrix("head.output.weight", model.table_rows, hidden, weight, false);
}

Parameter& Training::declare(const std::string& name, std::int64_t size, double mean, double stddev,
                             bool decays) {
  Parameter& parameter = parameters_[name];
  const std::uint64_t key = machine::random_key(seed_, name);
  parameter.value.resize(index(size));
  for (std::int64_t i = 0; i < size; ++i)
    parameter.value[index(i)] = mean + stddev * normal(key, i);
  parameter.gradient.resize(index(size));
  parameter.first_moment.resize(index(size));
  parameter.second_moment.resize(index(size));
  parameter.decays = decays;
  return parameter;
}

void Training::declare_norm(const std::string& name) {
  declare(name + ".gain", model_.hidden, 1, 0.1, false);
  if (!model_.rms_norm) declare(name + ".bias", model_.hidden, 0, 0.1, false);
}

void Training::declare_linear(const std::string& name, std::int64_t out, std::int64_t in,
                              double stddev) {
  declare_matrix(name + ".weight", out, in, stddev);
  if (model_.biases) declare(name + ".bias", out, 0, 0.1, false);
}

// first: the index of the first element among all elements of the training.
void Training::drop(const std::string& name, double probability, std::int64_t first,
                    Rows& rows) const {
  if (probability == 0) return;
  const std::uint64_t key = machine::random_key(seed_, name);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool dropped = machine::uniform(key, static_cast<std::uint64_t>(first) + i) < probability;
    rows[i] = dropped ? 0 : rows[i] / (1 - probability);
  }
}

Rows Training::norm(const std::string& name, const Rows& x) const {
  const auto hidden = index(model_.hidden);
  const Rows& gain = parameters_.at(name + ".gain").value;
  Rows y(x.size());
  for (std::size_t row = 0; row < x.size(); row += hidden) {
    double mean = 0, squares = 0;
    for (std::size_t i = 0; i < hidden; ++i) mean += x[row + i] / model_.hidden;
    if (model_.rms_norm) mean = 0;
    for (std::size_t i = 0; i < hidden; ++i)
      squares += (x[row + i] - mean) * (x[row + i] - mean) / model_.hidden;
    for (std::size_t i = 0; i < hidden; ++i)
      y[row + i] = (x[row + i] - mean) / std::sqrt(squares + model_.epsilon) * gain[i];
  }
  if (model_.rms_norm) return y;
  const Rows& bias = parameters_.at(name + ".bias").value;
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += bias[i % hidden];
  return y;
}

// With z = (x - mean) / s and u = gain d_y: d_x = (u - mean(u) - z mean(u z)) / s. RMSNorm has no
// mean.
Rows Training::norm_backward(const std::string& name, const Rows& x, const Rows& d_y) {
  const auto hidden = index(model_.hidden);
  const auto columns = static_cast<double>(model_.hidden);
  Parameter& gain = parameters_.at(name + ".gain");
  Rows d_x(x.size()), z(hidden), u(hidden);
  for (std::size_t row = 0; row < x.size(); row += hidden) {
    double mean = 0, squares = 0, mean_u = 0, mean_uz = 0;
    for (std::size_t i = 0; i < hidden; ++i) mean += x[row + i] / columns;
    if (model_.rms_norm) mean = 0;
    for (std::size_t i = 0; i < hidden; ++i)
      squares += (x[row + i] - mean) * (x[row + i] - mean) / columns;
    const double s = std::sqrt(squares + model_.epsilon);
    for (std::size_t i = 0; i < hidden; ++i) {
      z[i] = (x[row + i] - mean) / s;
      u[i] = gain.value[i] * d_y[row + i];
      gain.gradient[i] += z[i] * d_y[row + i];
      mean_u += u[i] / columns;
      mean_uz += u[i] * z[i] / columns;
    }
    if (model_.rms_norm) mean_u = 0;
    for (std::size_t i = 0; i < hidden; ++i) d_x[row + i] = (u[i] - mean_u - z[i] * mean_uz) / s;
  }
  if (model_.rms_norm) return d_x;
  Rows& bias = parameters_.at(name + ".bias").gradient;
  for (std::size_t i = 0; i < d_y.size(); ++i) bias[i % hidden] += d_y[i];
  return d_x;
}

Rows Training::linear(const std::string& name, const Rows& x, int in, int out) const {
  Rows y = times_transposed(x, parameters_.at(name + ".weight").value, model_.sequence, in, out);
  const auto bias = parameters_.find(name + ".bias");
  if (bias == parameters_.end()) return y;
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += bias->second.value[i % index(out)];
  return y;
}

Rows Training::linear_backward(const std::string& name, const Rows& x, const Rows& d_y, int in,
                               int out) {
  Parameter& weight = parameters_.at(name + ".weight");
  Rows d_x(x.size());
  add_product(d_x, d_y, out, 1, weight.value, model_.sequence, out, in);
  add_product(weight.gradient, d_y, 1, out, x, out, model_.sequence, in);
  const auto bias = parameters_.find(name + ".bias");
  if (bias == parameters_.end()) return d_x;
  for (std::size_t i = 0; i < d_y.size(); ++i) bias->second.gradient[i % index(out)] += d_y[i];
  return d_x;
}

// GELU, or SwiGLU of (gate, up).
Rows Training::activate(const Rows& inner) const {
  if (!model_.swiglu) return gelu(inner);
  const auto ffn = index(model_.ffn);
  Rows active(inner.size() / 2);
  for (std::size_t i = 0; i < active.size(); ++i) {
    const double gate = inner[i / ffn * 2 * ffn + i % ffn];
    active[i] = gate * sigmoid(gate) * inner[i / ffn * 2 * ffn + ffn + i % ffn];
  }
  return active;
}

Rows Training::activate_backward(const Rows& inner, const Rows& d_active) const {
  if (!model_.swiglu) return gelu_backward(inner, d_active);
  const auto ffn = index(model_.ffn);
  Rows d_inner(inner.size());
  for (std::size_t i = 0; i < d_active.size(); ++i) {
    const std::size_t at = i / ffn * 2 * ffn + i % ffn;
    const double gate = inner[at], s = sigmoid(gate);
    d_inner[at] = d_active[i] * inner[at + ffn] * s * (1 + gate * (1 - s));
    d_inner[at + ffn] = d_active[i] * gate * s;
  }
  return d_inner;
}

Block Training::attended(const std::string& name, std::int64_t sequence_index, Block block,
                         const Rows& x) const {
  const int hidden = model_.hidden;
  const std::int64_t first = sequence_index * model_.sequence * hidden;
  block.x = x;
  block.norm1 = norm(name + ".norm1", x);
  block.self.qkv = linear(name + ".attention.qkv", block.norm1, hidden, model_.qkv());
  rotate(block.self.qkv, 1);
  attend(name + ".attention", sequence_index, block.self);
  block.residual = linear(name + ".attention.projection", block.self.context, hidden, hidden);
  drop(name + ".attention.dropout", model_.hidden_dropout, first, block.residual);
  add(block.residual, x);
  if (!block.encoded.empty()) cross(name, sequence_index, block);
  block.norm2 = norm(name + ".norm2", block.before_mlp());
  return block;
}

void Training::perceive(const std::string& name, Block& block) const {
  const int hidden = model_.hidden, inner = (model_.swiglu ? 2 : 1) * model_.ffn;
  block.inner = linear(name + ".mlp.fc1", block.norm2, hidden, inner);
  block.active = activate(block.inner);
  block.y = linear(name + ".mlp.fc2", block.active, model_.ffn, hidden);
}

void Training::finish(const std::string& name, std::int64_t sequence_index, Block& block) const {
  drop(name + ".mlp.dropout", model_.hidden_dropout,
       sequence_index * model_.sequence * model_.hidden, block.y);
  add(block.y, block.before_mlp());
}

Block Training::forward(const std::string& name, std::int64_t sequence_index, Block block,
                        const Rows& x) const {
  block = attended(name, sequence_index, std::move(block), x);
  perceive(name, block);
  finish(name, sequence_index, block);
  return block;
}

Rows Training::perceive_backward(const std::string& name, const Block& block, const Rows& d_y) {
  const int hidden = model_.hidden, inner = (model_.swiglu ? 2 : 1) * model_.ffn;
  const Rows d_active = linear_backward(name + ".mlp.fc2", block.active, d_y, model_.ffn, hidden);
  return linear_backward(name + ".mlp.fc1", block.norm2, activate_backward(block.inner, d_active),
                         hidden, inner);
}

Rows Training::backward(const std::string& name, std::int64_t sequence_index, const Block& block,
                        const Rows& d_y, Rows* d_bias, Rows* d_encoded) {
  Rows dropped = d_y;
  drop(name + ".mlp.dropout", model_.hidden_dropout,
       sequence_index * model_.sequence * model_.hidden, dropped);
  const Rows d_norm2 = perceive_backward(name, block, dropped);
  return attended_backward(name, sequence_index, block, d_norm2, d_y, d_bias, d_encoded);
}

Rows Training::attended_backward(const std::string& name, std::int64_t sequence_index,
                                 const Block& block, const Rows& d_norm2, const Rows& d_y,
                                 Rows* d_bias, Rows* d_encoded) {
  const int hidden = model_.hidden;
  const std::int64_t first = sequence_index * model_.sequence * hidden;
  Rows d_residual = norm_backward(name + ".norm2", block.before_mlp(), d_norm2);
  add(d_residual, d_y);
  if (d_encoded) cross_backward(name, sequence_index, block, d_residual, *d_encoded);

  Rows dropped = d_residual;
  drop(name + ".attention.dropout", model_.hidden_dropout, first, dropped);
  const Rows d_context =
      linear_backward(name + ".attention.projection", block.self.context, dropped, hidden, hidden);
  Rows d_qkv = attend_backward(name + ".attention", sequence_index, block.self, d_context, d_bias);
  rotate(d_qkv, -1);
  const Rows d_norm1 =
      linear_backward(name + ".attention.qkv", block.norm1, d_qkv, hidden, model_.qkv());
  Rows d_x = norm_backward(name + ".norm1", block.x, d_norm1);
  add(d_x, d_residual);
  return d_x;
}

Rows Training::embedded(const std::string& dropout, std::int64_t sequence_index,
                        const std::int32_t* tokens, const std::int32_t* types) const {
  const std::int64_t hidden = model_.hidden;
  Rows x(index(model_.sequence * hidden));
  const auto value = [&](const char* name, std::int64_t i) {
    return parameters_.at(name).value[index(i)];
  };
  for (std::int64_t i = 0; i < std::ssize(x); ++i) {
    x[index(i)] = value("embedding.token.weight", tokens[i / hidden] * hidden + i % hidden);
    if (model_.has_positions()) x[index(i)] += value("embedding.position.weight", i);
    if (model_.encoder)
      x[index(i)] += value("embedding.type.weight", types[i / hidden] * hidden + i % hidden);
  }
  drop(dropout, model_.hidden_dropout, sequence_index * std::ssize(x), x);
  return x;
}

void Training::embedded_backward(const std::string& dropout, std::int64_t sequence_index,
                                 const std::int32_t* tokens, const std::int32_t* types, Rows d_x) {
  const std::int64_t hidden = model_.hidden;
  drop(dropout, model_.hidden_dropout, sequence_index * std::ssize(d_x), d_x);
  const auto add_to = [&](const char* name, std::int64_t at, std::int64_t i) {
    parameters_.at(name).gradient[index(at)] += d_x[index(i)];
  };
  for (std::int64_t i = 0; i < std::ssize(d_x); ++i) {
    add_to("embedding.token.weight", tokens[i / hidden] * hidden + i % hidden, i);
    if (model_.has_positions()) add_to("embedding.position.weight", i, i);
    if (model_.encoder) add_to("embedding.type.weight", types[i / hidden] * hidden + i % hidden, i);
  }
}

double Training::head(const Rows& last, const std::int32_t* targets, Rows& d_last) {
  const std::int64_t length = model_.sequence, hidden = model_.hidden, rows = model_.table_rows;
  Parameter& output = parameters_.at(model_.tied ? "embedding.token.weight" : "head.output.weight");
  const Rows normed = norm("head.norm", last);
  Rows inner, active, features = normed;
  if (model_.encoder) {
    inner = linear("head.transform", normed, model_.hidden, model_.hidden);
    active = gelu(inner);
    features = norm("head.transform.norm", active);
  }
  Rows logits = times_transposed(features, output.value, length, hidden, rows);
  if (model_.encoder)
    for (std::size_t i = 0; i < logits.size(); ++i)
      logits[i] += parameters_.at("head.output.bias").value[i % index(rows)];

  double loss = 0;
  for (std::int64_t i = 0; i < length; ++i) {
    double* const logit = logits.data() + i * rows;
    const double largest = *std::max_element(logit, logit + model_.vocabulary);
    double sum = 0;
    for (std::int64_t j = 0; j < model_.vocabulary; ++j) sum += std::exp(logit[j] - largest);
    const bool counts = targets[i] >= 0;
    if (counts) loss += std::log(sum) + largest - logit[targets[i]];
    for (std::int64_t j = 0; j < rows; ++j)  // from here on the gradient of the logit
      logit[j] = counts && j < model_.vocabulary
                     ? std::exp(logit[j] - largest) / sum - (j == targets[i])
                     : 0;
  }

  Rows d_normed(normed.size());
  add_product(d_normed, logits, rows, 1, output.value, length, rows, hidden);
  add_product(output.gradient, logits, 1, rows, features, rows, length, hidden);
  if (model_.encoder) {
    Rows& bias = parameters_.at("head.output.bias").gradient;
    for (std::size_t i = 0; i < logits.size(); ++i) bias[i % index(rows)] += logits[i];
    const Rows d_active = norm_backward("head.transform.norm", active, d_normed);
    d_normed = linear_backward("head.transform", normed, gelu_backward(inner, d_active),
                               model_.hidden, model_.hidden);
  }
  d_last = norm_backward("head.norm", last, d_normed);
  return loss;
}

double Training::train(std::int64_t sequence_index, const Sequence& of) {
  const Rows x = embedded("embedding.dropout", sequence_index, of.tokens, of.types);
  std::vector<Block> blocks;
  for (int i = 0; i < model_.layers; ++i) {
    Block block;
    block.self.causal = !model_.encoder;
    block.self.length = of.keys;
    blocks.push_back(forward("blocks." + std::to_string(i), sequence_index, std::move(block),
                             i == 0 ? x : blocks.back().y));
  }
  Rows d_x;
  const double loss = head(blocks.back().y, of.targets, d_x);
  for (int i = model_.layers - 1; i >= 0; --i)
    d_x = backward("blocks." + std::to_string(i), sequence_index, blocks[index(i)], d_x);
  embedded_backward("embedding.dropout", sequence_index, of.tokens, of.types, d_x);
  return loss;
}

namespace {

bool matches(const std::string& pattern, std::size_t at, const std::string& name,
             std::size_t from) {
  if (at == pattern.size()) return from == name.size();
  if (pattern[at] != '*')
    return from < name.size() && pattern[at] == name[from] &&
           matches(pattern, at + 1, name, from + 1);
  for (std::size_t end = from; end <= name.size(); ++end)
    if (matches(pattern, at + 1, name, end)) return true;
  return false;
}

}  // namespace

void Training::freeze(const std::string& pattern) {
  for (auto& [name, parameter] : parameters_)
    parameter.frozen = parameter.frozen || matches(pattern, 0, name, 0);
}

Step Training::step(const Batch& batch, double learning_rate, bool skip, const Sums* sums) {
  for (auto& [name, parameter] : parameters_) std::ranges::fill(parameter.gradient, 0);
  const auto length = index(model_.sequence);
  Step step;
  double counted = 0;
  std::vector<Sequence> together;  // of a micro-batch, with experts
  for (std::size_t at = 0; at < batch.tokens.size(); at += length) {
    const auto part = [at](const std::vector<std::int32_t>& of) {
      return of.empty() ? nullptr : of.data() + at;
    };
    const Sequence one{part(batch.tokens), part(batch.targets), part(batch.types),
                       part(batch.decoder_tokens),
                       batch.lengths.empty() ? model_.sequence : batch.lengths[at / length]};
    const auto number = (batch.first_token + static_cast<std::int64_t>(at)) / model_.sequence;
    if (model_.mixture.experts == 0) {
      step.loss += model_.encoder_decoder ? train_both(number, one) : train(number, one);
    } else if (together.push_back(one);
               std::ssize(together) * model_.sequence == model_.mixture.tokens) {
      step.loss += train_together(number + 1 - std::ssize(together), together,
                                  batch.decisions[(at / length) / together.size()], step.logits);
      together.clear();
    }
    for (std::size_t i = 0; i < length; ++i) counted += batch.targets[at + i] >= 0;
  }
  step.loss /= counted;
  double squares = 0;
  for (const auto& [name, parameter] : parameters_) {
    if (parameter.frozen) continue;
    for (const double value : used(name, parameter, sums)) squares += value * value;
  }
  step.gradient_norm = std::sqrt(squares) / counted;
  const bool clips = rule_.largest_norm > 0 && step.gradient_norm > rule_.largest_norm;
  step.factor = (clips ? rule_.largest_norm / step.gradient_norm : 1) / counted;
  if (!skip) update(step.factor, learning_rate, sums);
  return step;
}

}  // namespace suite::plain
