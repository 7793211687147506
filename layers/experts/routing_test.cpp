// The router's decisions, without tensors or ranks.

#include "layers/experts/routing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "layers/experts/sinkhorn.h"
#include "layers/testing/sharded_case.h"

namespace layers::testing {
namespace {

using Values = std::vector<double>;

MoeConfig config_of(int experts, int topk) {
  MoeConfig config;
  config.num_experts = experts;
  config.topk = topk;
  config.pre_softmax = true;
  config.load_balancing = LoadBalancing::none;
  return config;
}

Values logits_of(std::int64_t tokens, int experts, unsigned seed = 7) {
  return random_values(tokens * experts, seed, machine::Dtype::float64);
}

TEST(Routing, ChoosesTheLargestAndOfEqualOnesTheFirst) {
  const Routing routing = route(config_of(4, 2), Values{1, 3, 3, 2, 0, 0, 0, 0});
  EXPECT_EQ(routing.choices, (std::vector<std::int32_t>{1, 2, 0, 1}));
  EXPECT_EQ(routing.load, (std::vector<std::int64_t>{1, 2, 1, 0}));
  EXPECT_NEAR(routing.weights[2], 0.25, 1e-15);
}

TEST(Routing, WeightsAreTheSoftmaxOverAllOrOverTheChosen) {
  MoeConfig config = config_of(6, 3);
  const Values logits = logits_of(20, 6);
  const Routing over_all = route(config, logits);
  config.pre_softmax = false;
  const Routing over_chosen = route(config, logits);
  for (std::size_t t = 0; t < 20; ++t) {
    double sum = 0, sum_of_chosen = 0, exps = 0;
    for (std::size_t e = 0; e < 6; ++e) exps += std::exp(logits[6 * t + e]);
    for (std::size_t k = 0; k < 3; ++k) {
      const auto expert = static_cast<std::size_t>(over_all.choices[3 * t + k]);
      EXPECT_NEAR(over_all.weights[3 * t + k], std::exp(logits[6 * t + expert]) / exps, 1e-14);
      sum += over_all.weights[3 * t + k];
      sum_of_chosen += over_chosen.weights[3 * t + k];
    }
    EXPECT_LT(sum, 1);
    EXPECT_NEAR(sum_of_chosen, 1, 1e-14);
    EXPECT_NEAR(over_chosen.weights[3 * t], over_all.weights[3 * t] / sum, 1e-14);
  }
}

TEST(Routing, KeepsAtMostTheCapacity) {
  MoeConfig config = config_of(4, 2);
  config.expert_capacity_factor = 1;
  EXPECT_EQ(config.capacity(30), 15);
  config.expert_capacity_factor = 1.1;
  EXPECT_EQ(config.capacity(30), 17);  // 16.5, rounded up
  config.expert_capacity_factor = 100;
  EXPECT_EQ(config.capacity(30), 30);
  config.expert_capacity_factor = 0.5;
  for (const TokenDropPolicy policy : {TokenDropPolicy::probs, TokenDropPolicy::position}) {
    config.token_drop_policy = policy;
    const Routing routing = route(config, logits_of(30, 4));
    std::int64_t kept = 0;
    for (int expert = 0; expert < 4; ++expert) {
      const auto of_expert = std::ranges::count(routing.choices, expert);
      EXPECT_EQ(of_expert,
                std::min<std::int64_t>(8, routing.load[static_cast<std::size_t>(expert)]));
      kept += of_expert;
      // No dropped choice precedes a kept one.
      double least_kept = 1, most_dropped = 0;
      std::size_t last_kept = 0, first_dropped = 60;
      const MoeConfig all = config_of(4, 2);
      const Routing before = route(all, logits_of(30, 4));
      for (std::size_t i = 0; i < 60; ++i) {
        if (routing.chosen[i] != expert) continue;
        if (routing.choices[i] >= 0) {
          least_kept = std::min(least_kept, before.weights[i]);
          last_kept = i;
          EXPECT_EQ(routing.weights[i], before.weights[i]);
        } else {
          most_dropped = std::max(most_dropped, before.weights[i]);
          first_dropped = std::min(first_dropped, i);
          EXPECT_EQ(routing.weights[i], 0);
        }
      }
      if (policy == TokenDropPolicy::probs)
        EXPECT_GE(least_kept, most_dropped);
      else
        EXPECT_LT(last_kept, first_dropped);
    }
    EXPECT_EQ(kept + routing.dropped(), 60);
  }
}

TEST(Routing, BalancedLoadHasTheLeastAuxiliaryLoss) {
  MoeConfig config = config_of(4, 1);
  config.load_balancing = LoadBalancing::aux_loss;
  config.aux_loss_coeff = 3;
  config.z_loss_coeff = 2;
  Values even, crowded;
  for (int t = 0; t < 8; ++t)
    for (int e = 0; e < 4; ++e) {
      even.push_back(e == t % 4 ? 1 : 0);
      crowded.push_back(e == 0 ? 1 : 0);
    }
  EXPECT_NEAR(route(config, even).aux_loss, 3, 1e-14);
  const double p = std::exp(1) / (std::exp(1) + 3);
  EXPECT_NEAR(route(config, crowded).aux_loss, 3 * 4 * p, 1e-13);
  const double log_sum_exp = std::log(std::exp(1) + 3);
  EXPECT_NEAR(route(config, even).z_loss, 2 * log_sum_exp * log_sum_exp, 1e-13);
}

// Two ranks with half of the tokens each: the losses of all tokens are the sums of the ranks'
// terms.
TEST(Routing, PartsJoinTheirLosses) {
  MoeConfig config = config_of(4, 2);
  config.load_balancing = LoadBalancing::aux_loss;
  config.aux_loss_coeff = 3;
  config.z_loss_coeff = 2;
  const Values logits = logits_of(12, 4), slopes = random_values(24, 3, machine::Dtype::float64);
  const Routing whole = route(config, logits);
  const Values gradient = route_backward(config, logits, whole, slopes, 0.25);
  const LossParts others{2, [&](const auto&) { return whole.load; }};
  double losses = 0;
  Values joined;
  for (const std::ptrdiff_t first : {0, 24}) {
    const Values own(logits.begin() + first, logits.begin() + first + 24);
    const Routing half = route(config, own, nullptr, others);
    EXPECT_EQ(half.loss_tokens, 12);
    EXPECT_NE(half.load, whole.load);
    losses += half.aux_loss + half.z_loss;
    const Values part =
        route_backward(config, own, half,
                       std::span(slopes).subspan(static_cast<std::size_t>(first / 2), 12), 0.25);
    joined.insert(joined.end(), part.begin(), part.end());
  }
  EXPECT_NEAR(losses, whole.aux_loss + whole.z_loss, 1e-13);
  for (std::size_t i = 0; i < gradient.size(); ++i) EXPECT_NEAR(joined[i], gradient[i], 1e-14);
}

// The loss is sum of weight * slope over the kept choices, plus loss_factor times both losses.
TEST(Routing, GradientsAreDifferenceQuotients) {
  struct Mode {
    LoadBalancing balancing;
    bool pre_softmax;
    int topk;
    double capacity;
  };
  using enum LoadBalancing;
  for (const Mode& mode : {Mode{none, true, 1, 0},
                           {none, true, 2, 0},
                           {aux_loss, true, 2, 0.8},
                           {aux_loss, false, 2, 0},
                           {aux_loss, false, 3, 0.6},
                           {sinkhorn, true, 1, 0},
                           {sinkhorn, true, 2, 0}}) {
    SCOPED_TRACE(std::string(name(mode.balancing)) + std::to_string(mode.topk));
    MoeConfig config = config_of(5, mode.topk);
    config.load_balancing = mode.balancing;
    config.pre_softmax = mode.pre_softmax;
    config.expert_capacity_factor = mode.capacity;
    config.aux_loss_coeff = mode.balancing == aux_loss ? 2 : 0;
    config.z_loss_coeff = 0.5;
    Values logits = logits_of(9, 5);
    const Values slopes = random_values(9 * mode.topk, 3, machine::Dtype::float64);
    const Routing routing = route(config, logits);
    const auto loss = [&] {
      const Routing moved = route(config, logits);
      EXPECT_EQ(moved.choices, routing.choices);
      return std::inner_product(slopes.begin(), slopes.end(), moved.weights.begin(), 0.0) +
             0.25 * (moved.aux_loss + moved.z_loss);
    };
    const Values gradient = route_backward(config, logits, routing, slopes, 0.25);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double step = 1e-6, before = logits[i];
      logits[i] = before + step;
      const double above = loss();
      logits[i] = before - step;
      const double below = loss();
      logits[i] = before;
      // The quotient's own error: step^2 / 6 of a third derivative, and 1e-16 / step of rounding.
      EXPECT_NEAR(gradient[i], (above - below) / (2 * step), 1e-8);
    }
  }
}

TEST(Sinkhorn, GivesEveryTokenAndEveryExpertTheSameSum) {
  Values logits = logits_of(40, 4);
  for (std::size_t t = 0; t < 40; ++t) logits[4 * t] += 3;  // all tokens prefer the first expert
  const Values scaled = sinkhorn(logits, 4);
  Values of_expert(4);
  for (std::size_t t = 0; t < 40; ++t) {
    double of_token = 0;
    for (std::size_t e = 0; e < 4; ++e) {
      of_token += scaled[4 * t + e];
      of_expert[e] += scaled[4 * t + e];
    }
    EXPECT_NEAR(of_token, 1.0 / 40, 1e-4);
  }
  for (const double sum : of_expert) EXPECT_NEAR(sum, 0.25, 1e-6);

  MoeConfig config = config_of(4, 1);
  const auto most = [&] { return std::ranges::max(route(config, logits).load); };
  const std::int64_t without = most();
  config.load_balancing = LoadBalancing::sinkhorn;
  EXPECT_GT(without, 30);
  EXPECT_LT(most(), 16);
}

std::string refusal(MoeConfig config, int ep = 1, int etp = 1) {
  try {
    config.validate(ep, etp);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(MoeConfig, RejectsWhatDoesNotFit) {
  EXPECT_EQ(refusal(config_of(4, 2)), "accepted");
  EXPECT_EQ(refusal(config_of(4, 5)), "moe-router-topk is 5; expected 1 to num-experts 4");
  EXPECT_EQ(refusal(config_of(4, 2), 3),
            "expert-model-parallel-size is 3; expected a divisor of num-experts 4 (example: 4)");
  MoeConfig config = config_of(4, 1);
  config.pre_softmax = false;
  EXPECT_EQ(refusal(config), "moe-router-topk 1 requires moe-router-pre-softmax (got off)");
  config = config_of(4, 2);
  config.pad_expert_input_to_capacity = true;
  EXPECT_EQ(refusal(config),
            "moe-pad-expert-input-to-capacity requires moe-expert-capacity-factor (got 0)");
  config = config_of(4, 2);
  config.load_balancing = LoadBalancing::sinkhorn;
  config.aux_loss_coeff = 1;
  EXPECT_EQ(refusal(config),
            "moe-router-load-balancing-type sinkhorn requires moe-aux-loss-coeff 0 (got 1)");
}

}  // namespace
}  // namespace layers::testing
