#include "layers/experts/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "layers/experts/sinkhorn.h"
#include "machine/base/error.h"

namespace layers {
namespace {

using Row = std::span<const double>;

struct Softmax {
  std::vector<double> probabilities;
  double log_sum_exp = 0;
};

Softmax softmax(Row logits) {
  Softmax result{{logits.begin(), logits.end()}, 0};
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (double& value : result.probabilities) sum += value = std::exp(value - largest);
  for (double& value : result.probabilities) value /= sum;
  result.log_sum_exp = largest + std::log(sum);
  return result;
}

// Returns the indices of the `count` largest values, the largest first.
std::vector<std::int32_t> largest(Row values, int count) {
  std::vector<std::int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [&](std::int32_t i) { return values[static_cast<std::size_t>(i)]; });
  order.resize(static_cast<std::size_t>(count));
  return order;
}

Row row_of(Row matrix, std::int64_t row, std::int64_t columns) {
  return matrix.subspan(static_cast<std::size_t>(row * columns), static_cast<std::size_t>(columns));
}

bool is_logistic(const MoeConfig& config) {
  return config.load_balancing == LoadBalancing::sinkhorn && config.topk == 1;
}
bool is_over_all(const MoeConfig& config) {
  return config.pre_softmax || config.load_balancing == LoadBalancing::sinkhorn;
}

// Returns the weights of a token's choices, before drops.
std::vector<double> weights_of(const MoeConfig& config, Row logits,
                               std::span<const std::int32_t> chosen) {
  std::vector<double> weights;
  for (const std::int32_t expert : chosen)
    weights.push_back(logits[static_cast<std::size_t>(expert)]);
  if (is_logistic(config)) return {1 / (1 + std::exp(-weights[0]))};
  if (!is_over_all(config)) return softmax(weights).probabilities;
  const Softmax all = softmax(logits);
  for (std::size_t k = 0; k < weights.size(); ++k)
    weights[k] = all.probabilities[static_cast<std::size_t>(chosen[k])];
  return weights;
}

// Drops what exceeds each expert's capacity. Of equal weights the earlier token stays.
void drop(const MoeConfig& config, Routing& routing) {
  const std::int64_t capacity = config.capacity(routing.tokens);
  std::vector<std::vector<std::size_t>> of_expert(static_cast<std::size_t>(config.num_experts));
  for (std::size_t i = 0; i < routing.choices.size(); ++i)
    of_expert[static_cast<std::size_t>(routing.choices[i])].push_back(i);
  for (std::vector<std::size_t>& choices : of_expert) {
    if (config.token_drop_policy == TokenDropPolicy::probs)
      std::ranges::stable_sort(choices, std::ranges::greater{},
                               [&](std::size_t i) { return routing.weights[i]; });
    for (std::size_t i = static_cast<std::size_t>(capacity); i < choices.size(); ++i) {
      routing.choices[choices[i]] = -1;
      routing.weights[choices[i]] = 0;
    }
  }
}

double aux_scale(const MoeConfig& config, double tokens) {
  return config.load_balancing == LoadBalancing::aux_loss
             ? config.aux_loss_coeff * config.num_experts / (config.topk * tokens * tokens)
             : 0;
}

}  // namespace

std::int64_t Routing::dropped() const { return std::ranges::count(choices, -1); }

bool needs_load(const MoeConfig& config) { return aux_scale(config, 1) != 0; }

Routing route(const MoeConfig& config, std::span<const double> logits, RoutingRecord* record,
              const LossParts& others) {
  const bool given = record && record->given;
  const std::int64_t experts = config.num_experts;
  Routing routing;
  routing.tokens = static_cast<std::int64_t>(logits.size()) / experts;
  routing.loss_tokens = routing.tokens * others.parts;
  routing.topk = config.topk;
  routing.load.resize(static_cast<std::size_t>(experts));
  std::vector<double> scaled;
  if (config.load_balancing == LoadBalancing::sinkhorn && !given)
    scaled = sinkhorn(logits, experts);
  const auto choose = [&](std::int64_t t, Row row) {
    if (!given) return largest(scaled.empty() ? row : row_of(scaled, t, experts), config.topk);
    const auto first = record->chosen.begin() + t * config.topk;
    return std::vector<std::int32_t>(first, first + config.topk);
  };
  std::vector<double> sums(static_cast<std::size_t>(experts));  // of probabilities over tokens
  for (std::int64_t t = 0; t < routing.tokens; ++t) {
    const Row row = row_of(logits, t, experts);
    const auto chosen = choose(t, row);
    const auto weights = weights_of(config, row, chosen);
    routing.chosen.insert(routing.chosen.end(), chosen.begin(), chosen.end());
    routing.weights.insert(routing.weights.end(), weights.begin(), weights.end());
    for (const std::int32_t expert : chosen) ++routing.load[static_cast<std::size_t>(expert)];
    const Softmax all = softmax(row);
    for (std::size_t e = 0; e < sums.size(); ++e) sums[e] += all.probabilities[e];
    routing.z_loss += config.z_loss_coeff / static_cast<double>(routing.loss_tokens) *
                      all.log_sum_exp * all.log_sum_exp;
  }
  const bool sums_loads = others.parts > 1 && needs_load(config);
  routing.loss_load = sums_loads ? others.sum(routing.load) : routing.load;
  for (std::size_t e = 0; e < sums.size(); ++e)
    routing.aux_loss += aux_scale(config, static_cast<double>(routing.loss_tokens)) *
                        static_cast<double>(routing.loss_load[e]) * sums[e];
  routing.choices = given ? record->choices : routing.chosen;
  if (given)
    for (std::size_t i = 0; i < routing.choices.size(); ++i)
      if (routing.choices[i] < 0) routing.weights[i] = 0;
  if (config.drops() && !given) drop(config, routing);
  if (record)
    *record = {given,
               {logits.begin(), logits.end()},
               routing.chosen,
               routing.choices,
               routing.aux_loss + routing.z_loss};
  return routing;
}

std::vector<double> route_backward(const MoeConfig& config, std::span<const double> logits,
                                   const Routing& routing, std::span<const double> d_weights,
                                   double loss_factor) {
  const std::int64_t experts = config.num_experts;
  const auto topk = static_cast<std::size_t>(routing.topk);
  SHARDMARK_CHECK(d_weights.size(), ==, routing.choices.size());
  const double tokens = static_cast<double>(routing.loss_tokens);
  const double aux = loss_factor * aux_scale(config, tokens),
               z = loss_factor * 2 * config.z_loss_coeff / tokens;
  std::vector<double> d_logits(logits.size());
  for (std::int64_t t = 0; t < routing.tokens; ++t) {
    const Row row = row_of(logits, t, experts);
    const auto d_row =
        std::span(d_logits).subspan(static_cast<std::size_t>(t * experts), row.size());
    const std::size_t first = static_cast<std::size_t>(t) * topk;
    const auto chosen = std::span(routing.chosen).subspan(first, topk);
    // The gradient of a dropped choice's weight is 0, but its logit is part of the softmax.
    std::vector<double> d_chosen(topk);
    for (std::size_t k = 0; k < topk; ++k)
      if (routing.choices[first + k] >= 0) d_chosen[k] = d_weights[first + k];
    const Softmax all = softmax(row);
    std::vector<double> d_all(row.size());  // of the probabilities over all experts
    for (std::size_t e = 0; e < d_all.size(); ++e)
      d_all[e] = aux * static_cast<double>(routing.loss_load[e]);
    if (is_logistic(config)) {
      const double weight = weights_of(config, row, chosen)[0];
      d_row[static_cast<std::size_t>(chosen[0])] += weight * (1 - weight) * d_chosen[0];
    } else if (is_over_all(config)) {
      for (std::size_t k = 0; k < topk; ++k)
        d_all[static_cast<std::size_t>(chosen[k])] += d_chosen[k];
    } else {
      const std::vector<double> weights = weights_of(config, row, chosen);
      const double mean = std::inner_product(weights.begin(), weights.end(), d_chosen.begin(), 0.0);
      for (std::size_t k = 0; k < topk; ++k)
        d_row[static_cast<std::size_t>(chosen[k])] += weights[k] * (d_chosen[k] - mean);
    }
    const double mean =
        std::inner_product(d_all.begin(), d_all.end(), all.probabilities.begin(), 0.0);
    for (std::size_t e = 0; e < d_all.size(); ++e)
      d_row[e] += all.probabilities[e] * (d_all[e] - mean + z * all.log_sum_exp);
  }
  return d_logits;
}

}  // namespace layers
