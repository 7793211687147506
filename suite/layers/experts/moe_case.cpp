#include "suite/layers/experts/moe_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "suite/options/options.h"

namespace suite {
namespace {

// Returns the smallest capacity with which all experts together take `factor` times the choices of
// a rank, at most all its tokens; 0: nothing is dropped. Found by counting, so the layer's formula
// is judged.
std::int64_t counted_capacity(const layers::MoeConfig& config, std::int64_t tokens) {
  const double choices = config.expert_capacity_factor * static_cast<double>(tokens * config.topk);
  std::int64_t capacity = 0;
  while (static_cast<double>(capacity * config.num_experts) < choices && capacity < tokens)
    ++capacity;
  return capacity;
}

}  // namespace

layers::MoeConfig MoeUnitCase::config() const {
  layers::MoeConfig config;
  config.hidden = hidden_size;
  config.ffn_hidden_size = ffn_hidden_size;
  config.swiglu = architecture == "llama";
  config.bias = !config.swiglu;
  config.num_experts = num_experts;
  config.topk = topk;
  config.pre_softmax = pre_softmax;
  config.load_balancing = layers::load_balancing(load_balancing);
  // Large enough that a wrong gradient of a loss exceeds the bounds.
  config.aux_loss_coeff = load_balancing == "aux_loss" ? 2 : 0;
  config.z_loss_coeff = 0.5;
  if (capacity_factor != "none")
    config.expert_capacity_factor = positive_number("moe-expert-capacity-factor", capacity_factor);
  config.token_drop_policy = layers::token_drop_policy(drop_policy);
  config.pad_expert_input_to_capacity = pads;
  config.token_dispatcher_type = layers::token_dispatcher_type(dispatcher);
  config.shared_expert_intermediate_size = shared_size;
  return config;
}

MoeSizes MoeUnitCase::reference() const {
  const layers::MoeConfig config = this->config();
  return {.ranks = ranks,
          .tokens = seq_length,
          .hidden = hidden_size,
          .ffn = ffn_hidden_size,
          .shared = shared_size,
          .experts = num_experts,
          .topk = topk,
          .swiglu = config.swiglu,
          .bias = config.bias,
          .softmax_over_all = pre_softmax,
          .sinkhorn = load_balancing == "sinkhorn",
          .aux = config.aux_loss_coeff,
          .z = config.z_loss_coeff,
          .capacity = counted_capacity(config, seq_length),
          .drops_last = drop_policy == "position"};
}

namespace {

std::string why_no_case(const MoeUnitCase& c) {
  for (const auto& [axis, value] : {std::pair("ep", c.ep),
                                    {"etp", c.etp},
                                    {"seq-length", c.seq_length},
                                    {"hidden-size", c.hidden_size}})
    if (value < 1)
      throw harness::UsageError(fmt::format("--{} is {}; expected at least 1", axis, value));
  if (c.ranks % c.degrees().ranks() != 0)
    return fmt::format("ep {} x etp {}: ranks is {}; expected a multiple of {} (example: {})", c.ep,
                       c.etp, c.ranks, c.degrees().ranks(), c.degrees().ranks());
  try {
    c.config().validate(c.ep, c.etp);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return {};
}

}  // namespace

Sweep<MoeUnitCase> moe_axes() {
  using Case = MoeUnitCase;
  using enum Dtype;
  Sweep<Case> sweep;
  sweep.axis("transport", &Case::transport, Transport::shared_memory)
      .axis("dtype", &Case::dtype, float32, {float32, bfloat16, float16, float64})
      .axis("ranks", &Case::ranks, 4)
      .axis("ep", &Case::ep, 4)
      .axis("etp", &Case::etp, 1)
      .axis("moe-token-dispatcher-type", &Case::dispatcher, "alltoall", {"alltoall", "allgather"})
      .axis("num-experts", &Case::num_experts, 8)
      .axis("moe-router-topk", &Case::topk, 2)
      .axis("moe-expert-capacity-factor", &Case::capacity_factor, "none")
      .axis("moe-token-drop-policy", &Case::drop_policy, "probs", {"probs", "position"})
      .axis("moe-pad-expert-input-to-capacity", &Case::pads, false)
      .axis("seq-length", &Case::seq_length, 64)
      .axis("hidden-size", &Case::hidden_size, 64)
      .only(why_no_case);
  return sweep;
}

std::vector<std::int64_t> rows_of_group(const MoeUnitCase& c,
                                        const std::vector<std::int32_t>& choices) {
  const std::int64_t slots = std::int64_t{c.seq_length} * c.topk;
  const std::int64_t capacity = c.reference().capacity;
  std::vector<std::int64_t> rows;
  for (std::int64_t rank = 0; rank < c.degrees().ranks(); ++rank)
    for (int expert = 0; expert < c.num_experts; ++expert)
      rows.push_back(c.pads ? capacity
                            : std::count(choices.begin() + rank * slots,
                                         choices.begin() + (rank + 1) * slots, expert));
  return rows;
}

MoeLoad moe_load(const MoeUnitCase& c, const MoeReference& decisions) {
  std::int64_t largest = 0;
  for (int expert = 0; expert < c.num_experts; ++expert)
    largest = std::max<std::int64_t>(largest, std::ranges::count(decisions.chosen, expert));
  const auto choices = static_cast<double>(decisions.chosen.size());
  return {static_cast<double>(largest) * c.num_experts / choices,
          static_cast<double>(std::ranges::count(decisions.choices, -1)) / choices};
}

}  // namespace suite
