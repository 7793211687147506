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

// The columns of queries and of keys of the own heads; those of keys that a rank sends, the sum
// over the ranks; and the copies of the head of keys with most.
struct ColumnsOfHeads {
  std::size_t queries, keys, sent_keys = 0;
  int copies;
  explicit ColumnsOfHeads(const ContextCase& c) {
    const OwnHeads own(c, c.rank);
    queries = Sizes::size(own.queries * c.head);
    keys = Sizes::size(own.keys * c.head);
    std::vector<int> of_head(Sizes::size(c.kv_heads));
    for (int rank = 0; rank < c.ranks; ++rank) {
      const OwnHeads theirs(c, rank);
      sent_keys += Sizes::size(theirs.keys * c.head);
      for (std::int64_t key = 0; key < theirs.keys; ++key)
        ++of_head[Sizes::size(theirs.first_key + key)];
    }
    copies = *std::ranges::max_element(of_head);
  }
};

ContextCost ulysses(const ContextCase& c, const Sizes& z) {
  const ColumnsOfHeads heads(c);
  const std::size_t w = heads.queries, x = heads.keys, X = heads.sent_keys;
  const std::size_t queries_out = z.n * (z.D - w) * z.E, queries_in = (z.T - z.n) * w * z.E,
                    keys_out = z.n * (X - x) * z.E, keys_in = (z.T - z.n) * x * z.E,
                    messages = 4 * (z.P - 1);
  const machine::TrafficLabel label{Operation::all_to_all_v, c.dtype};
  ContextCost cost;
  cost.forward.messages["cp"][label] = {queries_out + 2 * keys_out + queries_in, messages,
                                        queries_in + 2 * keys_in + queries_out, messages};
  cost.backward.messages["cp"][label] = {queries_out + queries_in + 2 * keys_in, messages,
                                         queries_in + queries_out + 2 * keys_out, messages};
  cost.kept = 2 * z.T * (w + x) * z.E + z.T * (w / Sizes::size(c.head)) * z.A;
  const std::size_t exchange = z.n * z.D + z.T * w;
  cost.forward.buffers = z.E * exchange;
  cost.backward.buffers = z.E * (z.T * w + std::max(exchange, z.T * w + 2 * z.T * x));
  cost.backward.buffers_at_end = z.E * (exchange + z.T * w + 2 * z.T * x);
  if (heads.copies > 1)
    cost.backward.buffers_at_end = std::max(
        cost.backward.buffers_at_end, z.E * (z.n * X + 2 * z.T * x) + z.n * z.K * (z.E + z.A));
  return cost;
}

// Every chunk but the last has as many positions as the first.
ContextCost fpdt(const ContextCase& c, const Sizes& z) {
  const std::int64_t chunk = std::min<std::int64_t>(c.options.fpdt_chunk_size, c.sequence),
                     chunks = (c.sequence + chunk - 1) / chunk;
  const auto of_chunk = [&](std::int64_t index) {
    ContextCase one = c;
    one.options = {CpCommType::a2a, SequenceOrder::striped};
    one.sequence = std::min(chunk, c.sequence - index * chunk);
    return one;
  };
  const ColumnsOfHeads heads(c);
  const std::size_t w = heads.queries, x = heads.keys, own_heads = w / Sizes::size(c.head);
  const Sizes first(of_chunk(0));
  const std::size_t C = first.T;
  ContextCost cost;
  ContextPass &forward = cost.forward, &backward = cost.backward;
  for (std::int64_t i = 0; i < chunks; ++i) {
    const Sizes sizes(of_chunk(i));
    if (c.ranks > 1) {
      const ContextCost once = ulysses(of_chunk(i), sizes);
      add(forward.messages, once.forward.messages);
      add(backward.messages, once.backward.messages);
    }
    const std::size_t n = sizes.T, pairs = Sizes::size(c.causal ? i + 1 : chunks);
    forward.copies.to_device += (pairs - 1) * 2 * C * x * z.E;
    backward.copies.to_device += 2 * n * x * z.E + n * w * (pairs * 3 * z.E + (pairs - 1) * z.A);
    backward.copies.to_host += n * w * (z.E + (pairs - 1) * z.A);
  }
  const std::size_t exchange = z.E * (first.n * z.D + C * w), of_queries = z.T * w * (z.E + z.A);
  std::size_t exchange_of_keys = z.E * (first.n * heads.sent_keys + C * x);
  if (heads.copies > 1)
    exchange_of_keys =
        std::max(exchange_of_keys, first.n * (heads.sent_keys * z.E + z.K * (z.E + z.A)));
  cost.kept = z.T * own_heads * z.A;
  forward.buffers = C * w * (z.A + z.E) + C * own_heads * z.A + exchange;
  backward.buffers = C * ((w + 2 * x) * z.E + 2 * x * z.A) + std::max(exchange, exchange_of_keys);
  forward.copies.to_host = 2 * z.T * (w + x) * z.E;
  if (!c.options.fpdt_offloading) {
    cost.kept += forward.copies.to_host;
    backward.buffers += of_queries;
    forward.copies = backward.copies = {};
    return cost;
  }
  const std::size_t sets = chunks > 1 ? 2 : 1;
  cost.kept_on_host = forward.copies.to_host;
  forward.buffers += C * (w + 2 * x) * z.E + (chunks > 1 ? 2 * 2 * C * x * z.E : 0);
  backward.buffers += sets * C * ((2 * x + 3 * w) * z.E + w * z.A);
  backward.host_buffers = of_queries;
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
  if (c.options.fpdt) return fpdt(c, z);
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
