#pragma once
// The router's decisions for the tokens of one rank: a pure function from logits to data. It knows
// no tensors, ranks or links.
//
//   const Routing routing = route(config, logits);
//   …d_logits = route_backward(config, logits, routing, d_weights, loss_factor);
//
// Choices are the topk largest logits (of sinkhorn, the largest scaled entries). Of equal ones the
// first expert wins. Weights are the softmax over all experts (pre_softmax), or over the chosen
// ones. With sinkhorn they are the softmax over all, or for topk 1 the logistic function, as in
// Megatron-LM. Dropping a choice does not change the weights of the others.
//
// Losses, means over T tokens, of the softmax p over all E experts. T are the rank's tokens, or
// those of all ranks that split a micro-batch (LossParts), of which a rank computes the terms of
// its own:
//   aux  aux_loss_coeff E sum_e (load_e / (topk T)) (1/T sum_t p_te)   (arXiv:2101.03961, section
//        2.2), with the load before drops, which has no gradient
//   z    z_loss_coeff 1/T sum_t log(sum_e exp(logit_te))^2             (arXiv:2202.08906)

#include <cstdint>
#include <functional>
#include <span>
#include <tuple>
#include <vector>

#include "layers/moe_config.h"

namespace layers {

struct Routing {
  std::int64_t tokens = 0;
  int topk = 1;
  std::vector<std::int32_t> choices;  // [tokens, topk]: experts, the largest first; -1: dropped
  std::vector<double> weights;        // [tokens, topk]; 0 of a dropped choice
  std::vector<std::int32_t> chosen;   // choices before drops
  std::vector<std::int64_t> load;     // [experts]: choices before drops
  // T of the losses, and the choices before drops of these tokens.
  std::int64_t loss_tokens = 0;
  std::vector<std::int64_t> loss_load;
  double aux_loss = 0, z_loss = 0;  // with their coefficients

  std::int64_t dropped() const;
};

// The logits and decisions of a router for the tokens of one rank, for oracles. With `given` the
// decisions are an input: a second run with other rounding then has the same choices and drops.
struct RoutingRecord {
  bool given = false;
  std::vector<double> logits;                 // [tokens, num_experts]
  std::vector<std::int32_t> chosen, choices;  // Routing's
  double losses = 0;                          // both auxiliary losses
  static auto members(auto& self) {
    return std::tie(self.given, self.logits, self.chosen, self.choices, self.losses);
  }
};

// The ranks that split a micro-batch, each with the same number of tokens (sequence and context
// parallelism). Choices, capacities and drops are of each rank's own tokens, as in Megatron-LM.
struct LossParts {
  int parts = 1;
  // Returns the sum of a load over the parts. route calls it once if needs_load.
  std::function<std::vector<std::int64_t>(const std::vector<std::int64_t>&)> sum{};
};
// Returns whether a loss depends on the load.
bool needs_load(const MoeConfig& config);

// logits: [tokens, num_experts]. A record is filled, or gives the decisions.
Routing route(const MoeConfig& config, std::span<const double> logits,
              RoutingRecord* record = nullptr, const LossParts& others = {});

// Returns the gradient of the logits: of the weights' gradient [tokens, topk], and loss_factor
// times that of both losses.
std::vector<double> route_backward(const MoeConfig& config, std::span<const double> logits,
                                   const Routing& routing, std::span<const double> d_weights,
                                   double loss_factor);

}  // namespace layers
