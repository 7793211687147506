#include "layers/moe_config.h"

#include <algorithm>
#include <cmath>

#include "machine/base/names.h"
#include "machine/base/reject.h"

namespace layers {

std::string_view name(LoadBalancing type) {
  constexpr std::string_view names[] = {"none", "aux_loss", "sinkhorn"};
  return names[static_cast<std::size_t>(type)];
}
std::string_view name(TokenDropPolicy policy) {
  constexpr std::string_view names[] = {"probs", "position"};
  return names[static_cast<std::size_t>(policy)];
}
std::string_view name(TokenDispatcherType type) {
  constexpr std::string_view names[] = {"alltoall", "allgather"};
  return names[static_cast<std::size_t>(type)];
}

LoadBalancing load_balancing(std::string_view text) {
  using enum LoadBalancing;
  return machine::named("moe-router-load-balancing-type", text, {none, aux_loss, sinkhorn});
}
TokenDropPolicy token_drop_policy(std::string_view text) {
  using enum TokenDropPolicy;
  return machine::named("moe-token-drop-policy", text, {probs, position});
}
TokenDispatcherType token_dispatcher_type(std::string_view text) {
  using enum TokenDispatcherType;
  return machine::named("moe-token-dispatcher-type", text, {alltoall, allgather});
}

std::int64_t MoeConfig::capacity(std::int64_t tokens) const {
  const double even = static_cast<double>(tokens * topk) / num_experts;
  return std::min(tokens, static_cast<std::int64_t>(std::ceil(even * expert_capacity_factor)));
}

void MoeConfig::validate(int ep, int etp) const {
  using machine::reject;
  machine::check_positive("hidden-size", hidden);
  machine::check_positive("moe-ffn-hidden-size", ffn_hidden_size);
  machine::check_positive("num-experts", num_experts);
  if (ep < 1 || num_experts % ep != 0)
    reject("expert-model-parallel-size is {}; expected a divisor of num-experts {} (example: {})",
           ep, num_experts, num_experts);
  if (etp < 1 || ffn_hidden_size % etp != 0)
    reject(
        "expert-tensor-parallel-size is {}; expected a divisor of moe-ffn-hidden-size {} "
        "(example: 1)",
        etp, ffn_hidden_size);
  if (topk < 1 || topk > num_experts)
    reject("moe-router-topk is {}; expected 1 to num-experts {}", topk, num_experts);
  if (topk == 1 && !pre_softmax && load_balancing != LoadBalancing::sinkhorn)
    reject("moe-router-topk 1 requires moe-router-pre-softmax (got off)");
  if (load_balancing == LoadBalancing::sinkhorn && aux_loss_coeff != 0)
    reject("moe-router-load-balancing-type sinkhorn requires moe-aux-loss-coeff 0 (got {})",
           aux_loss_coeff);
  if (!(expert_capacity_factor >= 0))
    reject("moe-expert-capacity-factor is {}; expected 0 or more", expert_capacity_factor);
  if (pad_expert_input_to_capacity && !drops())
    reject("moe-pad-expert-input-to-capacity requires moe-expert-capacity-factor (got 0)");
  if (load_balancing == LoadBalancing::sinkhorn && drops())
    reject("moe-router-load-balancing-type sinkhorn does not support moe-expert-capacity-factor");
}

}  // namespace layers
