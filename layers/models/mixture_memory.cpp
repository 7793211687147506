#include "layers/models/mixture_memory.h"

namespace layers {

Mixture::Mixture(const GptConfig& config, const StageCase& stage, std::size_t block)
    : present(config.has_experts(stage.stage.blocks(config).begin + static_cast<int>(block))) {
  if (!present) return;
  const auto size = [](std::int64_t value) { return static_cast<std::size_t>(value); };
  const MoeCase c = moe_case(config, stage, block);
  const MoeRows rows = moe_rows(c);
  all_to_all = c.config.token_dispatcher_type == TokenDispatcherType::alltoall;
  arranges = all_to_all && c.config.num_experts > c.degrees.ep;
  pads = c.config.pads();
  sums_loads = c.sums_loads();
  P = size(c.degrees.ranks());
  T = size(c.tokens);
  N = size(c.config.num_experts);
  k = size(c.config.topk);
  S = size(rows.sent);
  R = size(rows.received);
  h = size(c.config.hidden);
  f = size(c.config.ffn_hidden_size / c.degrees.etp);
  i = (c.config.swiglu ? 2 : 1) * f;
  F = size(c.config.shared_expert_intermediate_size / stage.tp);
  I = (c.config.swiglu ? 2 : 1) * F;
  T_shared = size(stage.tokens(config));
  E = machine::size_of(c.dtype);
  A = c.dtype == Dtype::float64 ? 8 : 4;
  B = A == E ? 0 : A;
}

// clang-format off
std::vector<Row> mixture_rows(const Mixture& m, const MixtureBorder& block) {
  enum Moment : int {
    route = of_mlp, counts, weigh, exchange, compute, give_back, sum, share,
    d_gather = d_of_mlp, d_dot, d_slots, d_exchange, d_compute, d_give_back, d_sum, d_route, d_share, d_scatter,
    w_experts = weight_half, w_shared = mlp_weights_end
  };
  using enum Held;
  const std::size_t sent = m.S * m.h * m.E, rows = m.R * m.h * m.E, all = m.P * m.T * m.h,
                    slots = m.T * m.k, gathered = m.F > 0 ? block.gathered : 0,
                    copies = m.arranges ? rows : 0;  // by sender
  const auto either = [&](std::size_t alltoall, std::size_t allgather) {
    return m.all_to_all ? alltoall : allgather;
  };
  return {
      {saved, "norm2", block.own, route, w_shared},
      {saved, "statistics of norm2", block.statistics, route, done},
      {saved, "logits", m.T * m.N * m.A, route, d_route},
      {now,   "loads of all parts", m.sums_loads ? 8 * m.N : 0, route, route},
      {now,   "counts, or choices", either(m.pads ? 0 : 4 * (m.P + 1) * m.N, 4 * (m.P + 1) * slots), counts, counts},
      {now,   "weights of all ranks", either(0, (m.P + 1) * slots * m.A), weigh, weigh},
      {saved, "weights of rows", either(m.S, m.R) * m.E, weigh, d_sum},
      {saved, "indices of rows", 4 * either(m.S + 2 * m.R, m.R), exchange, d_sum},
      {now,   "rows to send, or tokens of all ranks", either(sent, all * m.E), exchange, exchange},
      {now,   "rows received", copies, exchange, exchange},
      {saved, "rows of the experts", rows, exchange, w_experts},
      {now,   "their outputs, to return", either(rows, 0), compute, sum},
      {saved, "their outputs, kept", either(0, rows), compute, d_slots},
      {saved, "inner of the experts", m.R * m.i * m.E, compute, d_compute},
      {saved, "active of the experts", m.R * m.f * m.E, compute, w_experts},
      {now,   "outputs by sender", copies, give_back, give_back},
      {saved, "outputs of the rank's tokens", either(sent, 0), give_back, d_slots},
      {now,   "weighted outputs", either(sent, rows), sum, sum},
      {now,   "sums of all ranks' tokens", either(m.T * m.h * m.B, all * (m.E + m.B)), sum, sum},
      {now,   "output of the shared expert", m.F > 0 ? m.T * m.h * m.E : 0, share, share},
      {saved, "inner of the shared expert", m.T_shared * m.I * m.E, share, d_share},
      {saved, "active of the shared expert", m.T_shared * m.F * m.E, share, w_shared},
      {now,   "norm2 of all rows, then y before its scatter", gathered, share, share},

      {later, "d_y dropped", block.dropped, d_gather, m.F == 0 ? d_share : gathered > 0 ? d_scatter : w_shared},
      {later, "d_norm2", block.own, d_gather, done},
      {now,   "d_y of the rows", either(sent, rows), d_gather, d_exchange},
      {now,   "d_y of all ranks", either(0, all * m.E), d_gather, d_gather},
      {now,   "d_y weighted", either(sent, 0), d_gather, d_exchange},
      {now,   "products of rows", either(m.S, m.R) * m.A, d_dot, d_dot},
      {now,   "gradients of all ranks' weights", either(0, (m.P + 1) * slots * m.A), d_slots, d_slots},
      {now,   "d_outputs received", copies, d_exchange, d_exchange},
      {later, "d_outputs", rows, d_exchange, w_experts},
      {now,   "d_rows of the experts", rows, d_compute, d_sum},
      {later, "d_inner of the experts", m.R * m.i * m.E, d_compute, w_experts},
      {now,   "d_active of the experts", m.R * m.f * m.E, d_compute, d_compute},
      {now,   "d_rows by sender", copies, d_give_back, d_give_back},
      {now,   "d_rows returned", either(sent, 0), d_give_back, d_sum},
      {now,   "sums of gradients", either(m.T * m.h * m.B, all * (m.E + m.B)), d_sum, d_sum},
      {later, "d_logits", m.T * m.N * m.E, d_route, w_experts},
      {now,   "d_norm2 of the shared expert", m.F > 0 ? m.T * m.h * m.E : 0, d_share, d_scatter},
      {later, "d_y of all rows", gathered, d_share, w_shared},
      {later, "d_inner of the shared expert", m.T_shared * m.I * m.E, d_share, w_shared},
      {now,   "d_active of the shared expert", m.T_shared * m.F * m.E, d_share, d_share},
      {now,   "d_norm2 before its scatter", gathered, d_scatter, d_scatter},

      {now,   "norm2 of all rows again", gathered, w_shared, w_shared},
  };
}
// clang-format on

}  // namespace layers
