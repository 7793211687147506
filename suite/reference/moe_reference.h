#pragma once
// A mixture of experts over all tokens of all ranks in double, by plain loops: every token goes
// through its experts, one after the other. No rows, groups of experts, messages or ranks, except
// that capacity, Sinkhorn's algorithm and the auxiliary losses are those of one rank's tokens.
//
// Decisions and weights follow from `logits`, which are the judged layer's: they are compared with
// x Wᵀ separately, so an expert is never chosen by a rounding error.
//
// Sizes bound what cancels: of a gradient that is a sum of terms of random sign, the root of the
// sum of their squares.

#include <cstdint>
#include <tuple>
#include <vector>

namespace suite {

struct MoeSizes {
  std::int64_t ranks = 1, tokens = 1;  // tokens of a rank
  std::int64_t hidden = 1, ffn = 1, shared = 0, experts = 1, topk = 1;
  bool swiglu = false, bias = true;
  bool softmax_over_all = false, sinkhorn = false;
  double aux = 0, z = 0, loss_factor = 1;
  std::int64_t capacity = 0;  // of a rank's tokens; 0: nothing is dropped
  bool drops_last = false;    // else the least probable
};

// W1 [ffn, hidden] (with swiglu [2 ffn, hidden]: gate, up), b1, W2 [hidden, ffn], b2, or gradients.
struct MoePerceptron {
  std::vector<double> weight1, bias1, weight2, bias2;
  static auto members(auto& self) {
    return std::tie(self.weight1, self.bias1, self.weight2, self.bias2);
  }
};

// x, d_y: [ranks, tokens, hidden]. logits: [ranks, tokens, experts]. router: [experts, hidden].
// given_chosen, given_choices: MoeReference's chosen and choices, or empty: they follow from
// logits.
struct MoeValues {
  std::vector<double> x, d_y, logits, router;
  std::vector<std::int32_t> given_chosen{}, given_choices{};
  std::vector<MoePerceptron> experts{};
  MoePerceptron shared{};
};

struct MoeReference {
  std::vector<std::int32_t> chosen, choices;    // [ranks, tokens, topk]; choices: -1 if dropped
  std::vector<double> weights, chosen_weights;  // the latter before drops
  std::vector<double> logits, logit_sizes;      // x Wᵀ, and |x| |W|ᵀ
  std::vector<double> aux_loss, z_loss;         // of each rank
  std::vector<double> y, d_x, d_x_sizes, d_router, d_router_sizes;
  std::vector<MoePerceptron> d_experts;
  MoePerceptron d_shared;
  static auto members(auto& self) {
    return std::tie(self.chosen, self.choices, self.weights, self.chosen_weights, self.logits,
                    self.logit_sizes, self.aux_loss, self.z_loss, self.y, self.d_x, self.d_x_sizes,
                    self.d_router, self.d_router_sizes, self.d_experts, self.d_shared);
  }
};

// Sets chosen, choices, weights and chosen_weights, from sizes and logits only.
MoeReference moe_decisions(const MoeSizes& z, const std::vector<double>& logits);
MoeReference moe_reference(const MoeSizes& z, const MoeValues& v);

}  // namespace suite
