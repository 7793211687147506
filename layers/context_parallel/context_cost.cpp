#include "layers/context_parallel/context_cost.h"

#include <algorithm>

namespace layers {
namespace {

using machine::Dtype, machine::Operation;

struct Sizes {
  std::size_t n, m = 0, T, D, K, H, E, A, P;
  std::size_t next, previous;  // tokens of the neighbours in the ring
  Dtype sums;

  explicit Sizes(const ContextCase& c)
      : n(tokens(c, c.rank)),
        T(size(c.sequences * c.sequence)),
        D(size(c.heads * c.head)),
        K(size(c.kv_heads * c.head)),
        H(size(c.heads)),
        E(size_of(c.dtype)),
        A(c.dtype == Dtype::float64 ? 8 : 4),
        P(size(c.ranks)),
        next(tokens(c, (c.rank + 1) % c.ranks)),
        previous(tokens(c, (c.rank + c.ranks - 1) % c.ranks)),
        sums(c.dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32) {
    for (int rank = 0; rank < c.ranks; ++rank) m = std::max(m, tokens(c, rank));
  }

  static std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }
  // Parts differ by at most one position, the first are longer. Zigzag: two of 2 P parts.
  static std::size_t tokens(const ContextCase& c, int rank) {
    const auto part = [&](int parts, int index) {
      return c.sequence / parts + (index < c.sequence % parts ? 1 : 0);
    };
    const std::int64_t rows =
        c.options.order == SequenceOrder::zigzag
            ? part(2 * c.ranks, rank) + part(2 * c.ranks, 2 * c.ranks - 1 - rank)
            : part(c.ranks, rank);
    return size(c.sequences * rows);
  }
};

ContextCost ring(const ContextCase& c, const Sizes& z) {
  const auto pair = [&](std::size_t tokens, std::size_t bytes) { return 2 * tokens * z.K * bytes; };
  const machine::TrafficLabel keys{Operation::send_receive, c.dtype},
      of_keys{Operation::send_receive, z.sums};
  const machine::Traffic blocks{pair(z.T - z.next, z.E), z.P - 1, pair(z.T - z.n, z.E), z.P - 1};
  ContextCost cost;
  cost.forward.messages["cp"][keys] += blocks;
  cost.backward.messages["cp"][keys] += blocks;
  cost.backward.messages["cp"][of_keys] +=
      {pair(z.T - z.n, z.A), z.P - 1, pair(z.T - z.previous, z.A), z.P - 1};
  cost.forward.buffers = 2 * pair(z.m, z.E);
  cost.backward.buffers = 2 * pair(z.m, z.E) + 2 * pair(z.m, z.A) + pair(z.n, z.A);
  return cost;
}

ContextCost all_gather(const ContextCase& c, const Sizes& z) {
  const std::size_t all = 2 * z.P * z.m * z.K;
  const auto elements = static_cast<std::int64_t>(all);
  ContextCost cost;
  cost.forward.calls = {{"cp", Operation::all_gather, c.dtype, c.ranks, elements, 1}};
  cost.backward.calls = {{"cp", Operation::all_gather, c.dtype, c.ranks, elements, 1},
                         {"cp", Operation::reduce_scatter, z.sums, c.ranks, elements, 1}};
  cost.forward.buffers = all * z.E;
  cost.backward.buffers = all * (z.E + z.A);
  return cost;
}

// Heads of queries are dealt out in order, and the first ranks have one more. A rank has the heads
// of keys that its queries use.
struct OwnHeads {
  std::int64_t queries, first_key, keys;
  OwnHeads(const ContextCase& c, int rank) {
    const std::int64_t each = c.heads / c.ranks, longer = c.heads % c.ranks;
    const std::int64_t first = rank * each + std::min<std::int64_t>(rank, longer);
    const std::int64_t shared = c.heads / c.kv_heads;
    queries = each + (rank < longer ? 1 : 0);
    first_key = first / shared;
    keys = (first + queries - 1) / shared - first_key + 1;
  }
};

ContextCost ulysses(const ContextCase& c, const Sizes& z) {
  const OwnHeads own(c, c.rank);
  const std::size_t w = Sizes::size(own.queries * c.head), x = Sizes::size(own.keys * c.head);
  std::size_t X = 0;
  std::vector<int> copies(Sizes::size(c.kv_heads));
  for (int rank = 0; rank < c.ranks; ++rank) {
    const OwnHeads theirs(c, rank);
    X += Sizes::size(theirs.keys * c.head);
    for (std::int64_t key = 0; key < theirs.keys; ++key)
      ++copies[Sizes::size(theirs.first_key + key)];
  }
  const std::size_t queries_out = z.n * (z.D - w) * z.E, queries_in = (z.T - z.n) * w * z.E,
                    keys_out = z.n * (X - x) * z.E, keys_in = (z.T - z.n) * x * z.E,
                    messages = 4 * (z.P - 1);
  const machine::TrafficLabel label{Operation::all_to_all_v, c.dtype};
  ContextCost cost;
  cost.forward.messages["cp"][label] = {queries_out + 2 * keys_out + queries_in, messages,
                                        queries_in + 2 * keys_in + queries_out, messages};
  cost.backward.messages["cp"][label] = {queries_out + queries_in + 2 * keys_in, messages,
                                         queries_in + queries_out + 2 * keys_out, messages};
  cost.kept = 2 * z.T * (w + x) * z.E + z.T * Sizes::size(own.queries) * z.A;
  const std::size_t exchange = z.n * z.D + z.T * w;
  cost.forward.buffers = z.E * exchange;
  cost.backward.buffers = z.E * (z.T * w + std::max(exchange, z.T * w + 2 * z.T * x));
  cost.backward.buffers_at_end = z.E * (exchange + z.T * w + 2 * z.T * x);
  if (*std::ranges::max_element(copies) > 1)
    cost.backward.buffers_at_end = std::max(
        cost.backward.buffers_at_end, z.E * (z.n * X + 2 * z.T * x) + z.n * z.K * (z.E + z.A));
  return cost;
}

ContextCost hybrid(const ContextCase& c, const Sizes& z) {
  const int u = c.options.a2a_size, ring_rank = c.rank / u;
  ContextCase outside = c;
  outside.ranks = c.ranks / u;
  outside.rank = ring_rank;
  outside.options = {CpCommType::p2p, c.options.order};
  ContextCase inside = c;
  inside.ranks = u;
  inside.rank = c.rank % u;
  inside.options = {CpCommType::a2a, SequenceOrder::contiguous};
  inside.sequence = static_cast<std::int64_t>(Sizes::tokens(outside, ring_rank)) / c.sequences;
  const OwnHeads own(inside, inside.rank);
  outside.heads = own.queries;
  outside.kv_heads = own.keys;
  ContextCost cost = ulysses(inside, Sizes(inside));
  const ContextCost ring = context_cost(outside);
  for (const auto& [pass, of_ring] :
       {std::pair(&cost.forward, &ring.forward), {&cost.backward, &ring.backward}}) {
    pass->messages = {{"cp_a2a", pass->messages.at("cp")}, {"cp_p2p", of_ring->messages.at("cp")}};
  }
  // Backward holds d_out and the gradients of the own heads while the ring runs.
  const std::size_t T = Sizes(inside).T;
  const std::size_t held = T * 2 * Sizes::size((own.queries + own.keys) * c.head) * z.E;
  cost.forward.buffers = std::max(cost.forward.buffers, ring.forward.buffers);
  cost.backward.buffers = std::max(cost.backward.buffers, held + ring.backward.buffers);
  return cost;
}

}  // namespace

void add(ContextMessages& all, const ContextMessages& each, int times) {
  for (const auto& [group, labels] : each)
    for (const auto& [label, traffic] : labels)
      for (int i = 0; i < times; ++i) all[group][label] += traffic;
}

ContextCost context_cost(const ContextCase& c) {
  const Sizes z(c);
  ContextCost cost;
  if (c.ranks > 1) {
    if (c.options.comm_type == CpCommType::a2a) return ulysses(c, z);
    if (c.options.is_hybrid()) return hybrid(c, z);
    cost = c.options.comm_type == CpCommType::p2p ? ring(c, z) : all_gather(c, z);
    const std::size_t merged = z.n * z.D * (z.A + z.E) + z.n * z.H * z.A;
    cost.forward.buffers += merged;
    cost.backward.buffers += merged + 2 * z.m * z.K * z.E;
  }
  cost.kept = z.n * z.H * z.A;
  return cost;
}

}  // namespace layers
