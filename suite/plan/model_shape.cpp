#include "suite/plan/model_shape.h"

#include <algorithm>

#include "suite/configuration/models.h"

namespace suite::configuration {
namespace {

struct Counts {
  double cut, whole;  // sharded over tp; replicated
};

double norm(const Model& model) {
  const bool rms = model.normalization == layers::Normalization::rms_norm;
  return static_cast<double>(model.hidden) * (rms ? 1 : 2);
}

Counts perceptron(const Model& model, double f) {
  const auto h = static_cast<double>(model.hidden);
  const double up = (model.swiglu ? 2 : 1) * f, bias = model.disable_bias_linear ? 0 : 1;
  return {h * up + f * h + bias * up, bias * h};
}

// Returns the experts of a layer. etp divides each expert.
Counts experts_of(const Model& model, int ep) {
  const layers::MoeConfig moe = model.mixture();
  const Counts expert = perceptron(model, static_cast<double>(moe.ffn_hidden_size));
  const double experts = static_cast<double>(moe.num_experts) / ep;
  return {experts * expert.cut, experts * expert.whole};
}

// Returns the router, and the shared expert, which tp divides.
Counts router_and_shared(const Model& model) {
  const layers::MoeConfig moe = model.mixture();
  const auto width = static_cast<double>(moe.shared_expert_intermediate_size);
  const Counts shared = width > 0 ? perceptron(model, width) : Counts{};
  return {shared.cut, static_cast<double>(moe.num_experts) * model.hidden + shared.whole};
}

double share_with_experts(const Model& model) {
  return static_cast<double>(model.moe_layers()) / std::max(model.layers, 1);
}

double experts_of_rank(const Model& model, double layers, int ep, int etp) {
  if (!model.has_experts()) return 0;
  const Counts experts = experts_of(model, ep);
  return layers * share_with_experts(model) * (experts.cut / etp + experts.whole);
}

// Returns the mean over the layers, without experts.
Counts layer(const Model& model) {
  const auto h = static_cast<double>(model.hidden);
  const auto a = static_cast<double>(model.heads), g = static_cast<double>(model.query_groups());
  const double qkv = h + 2 * h * g / a;
  Counts counts{h * qkv + h * h, 2 * norm(model)};
  if (!model.disable_bias_linear) {
    counts.cut += qkv;
    counts.whole += h;
  }
  const double experts = share_with_experts(model);
  const auto add = [&](const Counts& more, double share) {
    counts.cut += share * more.cut;
    counts.whole += share * more.whole;
  };
  if (experts < 1) add(perceptron(model, static_cast<double>(model.ffn())), 1 - experts);
  if (experts > 0) add(router_and_shared(model), experts);
  return counts;
}

double positions(const Model& model) {
  if (!model.learned_positions()) return 0;
  const int rows =
      model.max_position_embeddings > 0 ? model.max_position_embeddings : model.sequence;
  return static_cast<double>(rows) * static_cast<double>(model.hidden);
}

// Counts the additional parameters of a layer of an encoder-decoder's decoder: cross attention and
// its norm.
Counts cross_attention(const Model& model) {
  if (!model.encoder_decoder()) return {0, 0};
  const auto h = static_cast<double>(model.hidden);
  const double bias = model.disable_bias_linear ? 0 : h;
  return {4 * h * h + 3 * bias, bias + norm(model)};
}

// Counts the additional parameters at the ends of an encoder: token types, the hidden layer and the
// bias of the head. For an encoder-decoder: the norm at the encoder's end and the relative bias.
Counts other_ends(const Model& model) {
  const auto h = static_cast<double>(model.hidden);
  if (model.encoder_decoder())
    return {2.0 * model.heads * layers::relative_buckets_count, norm(model)};
  if (!model.encoder()) return {0, 0};
  return {static_cast<double>(model.tokens), 2 * h + h * h + h + norm(model)};
}

}  // namespace

double parameters_of(const Model& model) {
  if (!model.has_shape()) return static_cast<double>(model.parameters);
  const Counts each = layer(model);
  const double table = static_cast<double>(model.tokens) * static_cast<double>(model.hidden) *
                       (model.untie_embeddings_and_output_weights ? 2 : 1);
  const Counts cross = cross_attention(model), ends = other_ends(model);
  const auto layers = static_cast<double>(model.layers);
  return layers * (each.cut + each.whole) + experts_of_rank(model, layers, 1, 1) +
         layers / 2 * (cross.cut + cross.whole) + table + positions(model) + norm(model) +
         ends.cut + ends.whole;
}

double parameters_of_rank(const Model& model, const machine::Degrees& degrees, int ep, int etp) {
  const auto tp = static_cast<double>(degrees.tp), pp = static_cast<double>(degrees.pp);
  if (!model.has_shape()) return static_cast<double>(model.parameters) / tp / pp;
  const Counts each = layer(model);
  const Counts cross = cross_attention(model), ends = other_ends(model);
  const double own_layers = static_cast<double>(model.layers) / pp;
  const double layers =
      own_layers * (each.cut / tp + each.whole) +
      experts_of_rank(model, own_layers, ep, etp > 0 ? etp : degrees.tp) +
      std::min(own_layers, static_cast<double>(model.layers) / 2) * (cross.cut / tp + cross.whole) +
      ends.cut / tp + ends.whole;
  const double table = static_cast<double>(padded_vocabulary(model, degrees.tp)) *
                       static_cast<double>(model.hidden) / tp;
  const double first = table + positions(model), last = table + norm(model);
  if (degrees.pp > 1) return layers + std::max(first, last);
  return layers + first + norm(model) + (model.untie_embeddings_and_output_weights ? table : 0);
}

double parameters_of_rank(const TrainingConfig& config) {
  return parameters_of_rank(config.model, config.degrees, config.expert_parallel,
                            config.expert_tensor());
}

double expert_parameters_of_rank(const TrainingConfig& config) {
  return experts_of_rank(config.model, static_cast<double>(config.model.layers) / config.degrees.pp,
                         config.expert_parallel, config.expert_tensor());
}

double largest_part(const Model& model) {
  const auto h = static_cast<double>(model.hidden);
  const auto of_expert =
      static_cast<double>(model.has_experts() ? model.mixture().ffn_hidden_size : 0);
  const double f = model.moe_layers() < model.layers
                       ? std::max(static_cast<double>(model.ffn()), of_expert)
                       : of_expert;
  const double up = (model.swiglu ? 2 : 1) * f, bias = model.disable_bias_linear ? 0 : 1;
  const double qkv = h + 2 * h * model.query_groups() / std::max(model.heads, 1);
  return std::max(
      {static_cast<double>(model.tokens) * h, up * (h + bias), qkv * (h + bias), f * h + bias * h});
}

}  // namespace suite::configuration
