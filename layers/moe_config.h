#pragma once
// The shape of a mixture-of-experts layer (Shazeer et al. 2017, arXiv:1701.06538; Lepikhin et al.
// 2020, arXiv:2006.16668; Fedus et al. 2021, arXiv:2101.03961). Every token goes to the topk of
// num_experts perceptrons that its router chooses. The names are Megatron-LM's arguments
// (--moe-router-topk, --moe-expert-capacity-factor, …).

#include <cstdint>
#include <string_view>

namespace layers {

// The loss that keeps experts equally busy: none, Switch's auxiliary loss, or choices by Sinkhorn's
// algorithm (Clark et al. 2022, arXiv:2202.01169), which needs no loss.
enum class LoadBalancing : unsigned char { none, aux_loss, sinkhorn };
// The tokens that an expert keeps beyond its capacity: the most probable, or the first.
enum class TokenDropPolicy : unsigned char { probs, position };
// alltoall sends each token to the ranks of its experts. allgather sends all tokens to all ranks.
enum class TokenDispatcherType : unsigned char { alltoall, allgather };
std::string_view name(LoadBalancing type);
std::string_view name(TokenDropPolicy policy);
std::string_view name(TokenDispatcherType type);
// Return the value of a name. Throw std::invalid_argument that names the nearest.
LoadBalancing load_balancing(std::string_view text);
TokenDropPolicy token_drop_policy(std::string_view text);
TokenDispatcherType token_dispatcher_type(std::string_view text);

struct MoeConfig {
  std::int64_t hidden = 64;
  std::int64_t ffn_hidden_size = 256;  // of an expert
  bool swiglu = false;                 // else GELU
  bool bias = true;
  int num_experts = 4;
  int topk = 2;
  // Softmax over all experts before the choice. Otherwise it is over the chosen experts, so that
  // the weights of a token sum to 1.
  bool pre_softmax = false;
  LoadBalancing load_balancing = LoadBalancing::aux_loss;
  double aux_loss_coeff = 0, z_loss_coeff = 0;  // z: Zoph et al. 2022, arXiv:2202.08906
  double expert_capacity_factor = 0;            // 0: no token is dropped
  TokenDropPolicy token_drop_policy = TokenDropPolicy::probs;
  bool pad_expert_input_to_capacity = false;  // every expert gets its capacity from every rank
  TokenDispatcherType token_dispatcher_type = TokenDispatcherType::alltoall;
  std::int64_t shared_expert_intermediate_size = 0;  // 0: no shared expert

  bool drops() const { return expert_capacity_factor > 0; }
  bool pads() const { return drops() && pad_expert_input_to_capacity; }
  bool operator==(const MoeConfig&) const = default;
  // Returns the tokens of one rank that an expert takes: ceil(factor tokens topk / experts), at
  // most all tokens.
  std::int64_t capacity(std::int64_t tokens) const;
  // Columns of the first product of an expert.
  std::int64_t inner() const { return (swiglu ? 2 : 1) * ffn_hidden_size; }

  // Throws std::invalid_argument that names the key, its value and a valid value. ep must divide
  // num_experts, and etp must divide ffn_hidden_size. With topk 1, pre_softmax or sinkhorn is
  // required, because the weight of a single choice is 1 and has no gradient.
  void validate(int ep = 1, int etp = 1) const;
};

}  // namespace layers
