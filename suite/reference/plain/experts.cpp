// The mixture of experts of the plain training: the loops of moe_reference.h for the rows of one
// micro-batch, with the decisions that are given.

#include <algorithm>

#include "suite/reference/plain/training.h"

namespace suite::plain {
namespace {

using Rows = std::vector<double>;

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

std::string expert(const std::string& name, std::int64_t i) {
  return name + ".experts." + std::to_string(i);
}

}  // namespace

void Training::declare_experts(const std::string& name, double weight, double residual) {
  const MoeSizes& z = model_.mixture;
  const std::int64_t hidden = model_.hidden;
  declare_matrix(name + ".router.weight", z.experts, hidden, weight);
  const auto perceptron = [&](const std::string& of, std::int64_t ffn) {
    declare_linear(of + ".fc1", (model_.swiglu ? 2 : 1) * ffn, hidden, weight);
    declare_linear(of + ".fc2", hidden, ffn, residual);
  };
  for (std::int64_t i = 0; i < z.experts; ++i) perceptron(expert(name, i), z.ffn);
  if (z.shared > 0) perceptron(name + ".shared_experts", z.shared);
}

MoeValues Training::mixture_values(const std::string& name, const Rows& x,
                                   const Decisions& decisions) const {
  const MoeSizes& z = model_.mixture;
  MoeValues v;
  v.x = x;
  v.d_y.resize(x.size());
  v.router = parameters_.at(name + ".router.weight").value;
  for (std::int64_t t = 0; t < z.tokens; ++t)
    for (std::int64_t e = 0; e < z.experts; ++e) {
      double sum = 0;
      for (std::int64_t c = 0; c < z.hidden; ++c)
        sum += x[index(t * z.hidden + c)] * v.router[index(e * z.hidden + c)];
      v.logits.push_back(sum);
    }
  v.given_chosen = decisions.chosen;
  v.given_choices = decisions.choices;
  const auto perceptron = [&](const std::string& of) {
    const auto value = [&](const char* part) {
      const auto found = parameters_.find(of + part);
      return found == parameters_.end() ? Rows() : found->second.value;
    };
    return MoePerceptron{value(".fc1.weight"), value(".fc1.bias"), value(".fc2.weight"),
                         value(".fc2.bias")};
  };
  for (std::int64_t i = 0; i < z.experts; ++i) v.experts.push_back(perceptron(expert(name, i)));
  if (z.shared > 0) v.shared = perceptron(name + ".shared_experts");
  return v;
}

void Training::add_mixture_gradients(const std::string& name, const MoeReference& gradients) {
  const auto add = [&](const std::string& of, const Rows& gradient) {
    const auto found = parameters_.find(of);
    if (found == parameters_.end()) return;
    for (std::size_t i = 0; i < gradient.size(); ++i) found->second.gradient[i] += gradient[i];
  };
  const auto add_perceptron = [&](const std::string& of, const MoePerceptron& gradient) {
    add(of + ".fc1.weight", gradient.weight1);
    add(of + ".fc1.bias", gradient.bias1);
    add(of + ".fc2.weight", gradient.weight2);
    add(of + ".fc2.bias", gradient.bias2);
  };
  add(name + ".router.weight", gradients.d_router);
  for (std::size_t i = 0; i < gradients.d_experts.size(); ++i)
    add_perceptron(expert(name, static_cast<std::int64_t>(i)), gradients.d_experts[i]);
  if (model_.mixture.shared > 0) add_perceptron(name + ".shared_experts", gradients.d_shared);
}

double Training::train_together(std::int64_t sequence_index, const std::vector<Sequence>& sequences,
                                const std::vector<Decisions>& decisions,
                                std::vector<double>& logits) {
  const auto count = std::ssize(sequences);
  const auto size = model_.sequence * std::int64_t{model_.hidden};
  MoeSizes z = model_.mixture;
  z.loss_factor = static_cast<double>(z.tokens);  // the losses are means over the tokens
  std::vector<std::vector<Block>> blocks(index(model_.layers));
  std::vector<MoeValues> mixtures(index(model_.layers));
  std::vector<Rows> x;
  for (std::int64_t s = 0; s < count; ++s)
    x.push_back(embedded("embedding.dropout", sequence_index + s, sequences[index(s)].tokens,
                         sequences[index(s)].types));
  double loss = 0;
  for (int i = 0; i < model_.layers; ++i) {
    const std::string name = "blocks." + std::to_string(i);
    Rows normed;
    for (std::int64_t s = 0; s < count; ++s) {
      Block block;
      block.self.length = sequences[index(s)].keys;
      block = attended(name, sequence_index + s, std::move(block), x[index(s)]);
      if (!model_.has_experts(i)) perceive(name, block);
      normed.insert(normed.end(), block.norm2.begin(), block.norm2.end());
      blocks[index(i)].push_back(std::move(block));
    }
    if (model_.has_experts(i)) {
      MoeValues& v = mixtures[index(i)];
      v = mixture_values(name + ".moe", normed, decisions[index(i)]);
      logits.insert(logits.end(), v.logits.begin(), v.logits.end());
      const MoeReference mixed = moe_reference(z, v);
      loss += z.loss_factor * (mixed.aux_loss[0] + mixed.z_loss[0]);
      for (std::int64_t s = 0; s < count; ++s)
        blocks[index(i)][index(s)].y.assign(mixed.y.begin() + s * size,
                                            mixed.y.begin() + (s + 1) * size);
    }
    for (std::int64_t s = 0; s < count; ++s) {
      Block& block = blocks[index(i)][index(s)];
      finish(name, sequence_index + s, block);
      x[index(s)] = block.y;
    }
  }
  std::vector<Rows> d_x(index(count));
  for (std::int64_t s = 0; s < count; ++s)
    loss += head(x[index(s)], sequences[index(s)].targets, d_x[index(s)]);
  for (int i = model_.layers - 1; i >= 0; --i) {
    const std::string name = "blocks." + std::to_string(i);
    std::vector<Rows> d_norm2;
    Rows d_all;
    for (std::int64_t s = 0; s < count; ++s) {
      Rows dropped = d_x[index(s)];
      drop(name + ".mlp.dropout", model_.hidden_dropout, (sequence_index + s) * size, dropped);
      if (!model_.has_experts(i))
        d_norm2.push_back(perceive_backward(name, blocks[index(i)][index(s)], dropped));
      d_all.insert(d_all.end(), dropped.begin(), dropped.end());
    }
    if (model_.has_experts(i)) {
      MoeValues& v = mixtures[index(i)];
      v.d_y = d_all;
      const MoeReference mixed = moe_reference(z, v);
      add_mixture_gradients(name + ".moe", mixed);
      for (std::int64_t s = 0; s < count; ++s)
        d_norm2.emplace_back(mixed.d_x.begin() + s * size, mixed.d_x.begin() + (s + 1) * size);
    }
    for (std::int64_t s = 0; s < count; ++s)
      d_x[index(s)] = attended_backward(name, sequence_index + s, blocks[index(i)][index(s)],
                                        d_norm2[index(s)], d_x[index(s)]);
  }
  for (std::int64_t s = 0; s < count; ++s)
    embedded_backward("embedding.dropout", sequence_index + s, sequences[index(s)].tokens,
                      sequences[index(s)].types, d_x[index(s)]);
  return loss;
}

}  // namespace suite::plain
