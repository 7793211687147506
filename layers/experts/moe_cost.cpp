#include "layers/experts/moe_cost.h"

#include <algorithm>

namespace layers {
namespace {

using machine::Dtype, machine::Operation;

std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }

struct Sizes {
  std::size_t P, T, h, N, k, S = 0, R = 0, Q = 0, own = 0, f, i, F, I, E, A, B;
  Dtype sums;

  explicit Sizes(const MoeCase& c)
      : P(size(c.degrees.ranks())),
        T(size(c.tokens)),
        h(size(c.config.hidden)),
        N(size(c.config.num_experts)),
        k(size(c.config.topk)),
        f(size(c.config.ffn_hidden_size / c.degrees.etp)),
        i((c.config.swiglu ? 2 : 1) * f),
        F(size(c.config.shared_expert_intermediate_size)),
        I((c.config.swiglu ? 2 : 1) * F),
        E(size_of(c.dtype)),
        A(c.dtype == Dtype::float64 ? 8 : 4),
        B(A == E ? 0 : A),
        sums(c.dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32) {
    const MoeRows rows = moe_rows(c);
    S = size(rows.sent);
    R = size(rows.received);
    Q = c.config.num_experts > c.degrees.ep ? R : 0;  // copies of rows that are arranged by expert
    own = size(rows.own);
  }

  // Returns the peak of the parts that both dispatchers have in backward: `held` are the gradients
  // that backward_weights needs, d_out and d_inner.
  std::size_t held() const { return R * (h + i) * E; }
  std::size_t backward_of_experts() const { return R * (2 * h + i + f) * E; }
  std::size_t end_of_backward() const {
    return held() + T * N * E + (F > 0 ? T * (h + I + F) * E : 0);
  }
};

MoeCost all_to_all(const MoeCase& c, const Sizes& z) {
  MoeCost cost;
  for (MoePass* pass : {&cost.forward, &cost.backward_input}) {
    if (z.P == 1) continue;
    const std::uint64_t bytes = (z.S + z.R - 2 * z.own) * z.h * z.E, messages = 2 * (z.P - 1);
    pass->messages[{Operation::all_to_all_v, c.dtype}] = {bytes, messages, bytes, messages};
  }
  const auto counts = static_cast<std::int64_t>(z.P * z.N);
  if (!c.config.pads())
    cost.forward.calls = {{"ep", Operation::all_gather, Dtype::int32, c.degrees.ranks(), counts}};
  cost.kept = z.S * z.h * z.E + 4 * (z.S + 2 * z.R) + z.S * z.E;
  const std::size_t rows = z.h * z.E;
  cost.forward.buffers = std::max({c.config.pads() ? 0 : 4 * (z.P + 1) * z.N, (z.S + z.Q) * rows,
                                   (z.R + z.Q) * rows, (z.S + z.R) * rows + z.T * z.h * z.B});
  cost.backward_input.buffers = std::max(
      {2 * z.S * rows + z.S * z.A, (2 * z.S + z.R + z.Q) * rows, z.backward_of_experts(),
       z.held() + (z.R + z.Q + z.S) * rows, z.held() + (z.R + z.S) * rows + z.T * z.h * z.B});
  return cost;
}

MoeCost all_gather(const MoeCase& c, const Sizes& z) {
  const int P = c.degrees.ranks();
  const auto slots = static_cast<std::int64_t>(z.P * z.T * z.k),
             values = static_cast<std::int64_t>(z.P * z.T * z.h);
  MoeCost cost;
  cost.forward.calls = {{"ep", Operation::all_gather, Dtype::int32, P, slots},
                        {"ep", Operation::all_gather, z.sums, P, slots},
                        {"ep", Operation::all_gather, c.dtype, P, values},
                        {"ep", Operation::reduce_scatter, c.dtype, P, values}};
  cost.backward_input.calls = {{"ep", Operation::all_gather, c.dtype, P, values},
                               {"ep", Operation::reduce_scatter, z.sums, P, slots},
                               {"ep", Operation::reduce_scatter, c.dtype, P, values}};
  cost.kept = z.R * z.h * z.E + 4 * z.R + z.R * z.E;
  const std::size_t rows = z.R * z.h * z.E, all = z.P * z.T * z.h, slot = (z.P + 1) * z.T * z.k;
  cost.forward.buffers =
      std::max({slot * std::max<std::size_t>(4, z.A), all * z.E, rows + all * (z.E + z.B)});
  cost.backward_input.buffers =
      std::max({rows + all * z.E, rows + z.R * z.A, rows + slot * z.A, z.backward_of_experts(),
                z.held() + rows + all * (z.E + z.B)});
  return cost;
}

}  // namespace

MoeRows moe_rows(const MoeCase& c) {
  const int each = c.config.num_experts / c.degrees.ep;
  const auto holds = [&](int rank, int expert) { return rank / c.degrees.etp == expert / each; };
  MoeRows result;
  for (int expert = 0; expert < c.config.num_experts; ++expert)
    for (int from = 0; from < c.degrees.ranks(); ++from) {
      const std::int64_t rows = c.rows[size(std::int64_t{from} * c.config.num_experts + expert)];
      if (from == c.rank) result.sent += rows * c.degrees.etp;
      if (holds(c.rank, expert)) result.received += rows;
      if (from == c.rank && holds(c.rank, expert)) result.own += rows;
    }
  return result;
}

std::vector<std::int64_t> even_rows(const MoeConfig& config, ExpertParallel degrees,
                                    std::int64_t tokens) {
  const std::int64_t experts = config.num_experts, capacity = config.capacity(tokens);
  std::vector<std::int64_t> rows;
  for (int rank = 0; rank < degrees.ranks(); ++rank)
    for (std::int64_t expert = 0; expert < experts; ++expert) {
      const std::int64_t even = (tokens * config.topk + experts - 1 - expert) / experts;
      rows.push_back(config.pads() ? capacity : config.drops() ? std::min(even, capacity) : even);
    }
  return rows;
}

MoeCost moe_cost(const MoeCase& c) {
  const Sizes z(c);
  MoeCost cost = c.config.token_dispatcher_type == TokenDispatcherType::alltoall ? all_to_all(c, z)
                                                                                 : all_gather(c, z);
  cost.rows = static_cast<std::int64_t>(z.R);
  cost.kept += z.T * z.N * z.A + z.R * (z.h + z.i + z.f) * z.E + z.T * (z.I + z.F) * z.E;
  cost.kept_for_weights = z.R * (z.h + z.f) * z.E + z.T * z.F * z.E;
  if (c.sums_loads()) {
    cost.forward.calls.push_back({"tp_cp", Operation::all_reduce, Dtype::float64, c.parts,
                                  std::int64_t{c.config.num_experts}});
    cost.forward.buffers = std::max(cost.forward.buffers, 8 * z.N);
  }
  if (z.F > 0) cost.forward.buffers = std::max(cost.forward.buffers, z.T * z.h * z.E);
  cost.backward_input.buffers = std::max(cost.backward_input.buffers, z.end_of_backward());
  return cost;
}

MoeParameters moe_parameters(const MoeConfig& config, ExpertParallel degrees, int tp) {
  const auto of_mlp = [&](std::int64_t ffn) {
    const std::int64_t matrices = config.swiglu ? 3 : 2;
    return matrices * ffn * config.hidden +
           (config.bias ? (matrices - 1) * ffn + config.hidden : 0);
  };
  const std::int64_t shared = config.shared_expert_intermediate_size;
  return {config.num_experts / degrees.ep * of_mlp(config.ffn_hidden_size / degrees.etp),
          config.num_experts * config.hidden + (shared > 0 ? of_mlp(shared / tp) : 0)};
}

double moe_flops(const MoeConfig& config, ExpertParallel degrees, std::int64_t rows,
                 std::int64_t tokens) {
  const std::int64_t matrices = config.swiglu ? 3 : 2;
  const std::int64_t products =
      rows * matrices * config.ffn_hidden_size / degrees.etp * config.hidden +
      tokens * (config.num_experts + matrices * config.shared_expert_intermediate_size) *
          config.hidden;
  return 3.0 * 2 * static_cast<double>(products);
}

}  // namespace layers
