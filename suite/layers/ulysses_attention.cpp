// Claim: attention whose sequence is split over ranks, and during the attention its heads instead
// (Jacobs et al. 2023, arXiv:2309.14509), gives the whole attention's output and gradients. Each
// pass is four all-to-all. Ranks need not divide the heads, and ranks that share a head of keys
// each hold a copy, whose gradients are summed.
//
// Of rank r with columns w of its heads of queries and x of its heads of keys, X the sum of all
// ranks' x: to the heads a rank sends n (D - w) of queries and n (X - x) of keys and of values, and
// receives (T - n) w and (T - n) x; back the reverse. Forward sends q, k, v to the heads and out
// back, backward d_out to the heads and three gradients back.

#include "layers/context_parallel/ulysses_attention.h"

#include <fmt/format.h>

#include <algorithm>

#include "suite/layers/context_parallel_unit.h"

namespace suite {
namespace {

// Columns of a rank's heads: consecutive heads of queries, at most one more on the first ranks, and
// the heads of keys that they use.
struct Columns {
  std::uint64_t queries = 0, keys = 0;        // w, x
  std::uint64_t first_key = 0, last_key = 0;  // heads
};
Columns columns_of(const ContextParallelCase& c, int rank) {
  const int base = c.num_attention_heads / c.ranks, longer = c.num_attention_heads % c.ranks;
  const int first = rank * base + std::min(rank, longer), count = base + (rank < longer ? 1 : 0),
            group = c.num_attention_heads / c.num_query_groups;
  Columns columns;
  columns.first_key = static_cast<std::uint64_t>(first / group);
  columns.last_key = static_cast<std::uint64_t>((first + count - 1) / group);
  const auto head = static_cast<std::uint64_t>(c.kv_channels);
  columns.queries = static_cast<std::uint64_t>(count) * head;
  columns.keys = (columns.last_key - columns.first_key + 1) * head;
  return columns;
}

struct UlyssesAttention final : ContextParallelShell {
  static constexpr std::string_view name = "ulysses_attention";
  static constexpr std::string_view about =
      "attention with its sequence split over ranks: all-to-all between sequence and heads";

  static Sweep<Case> sweep() {
    using enum Profile;
    Sweep<Case> sweep = context_parallel_axes();
    sweep.only(why_no_sizes).only([](const Case& c) {
      return c.num_attention_heads >= c.ranks
                 ? std::string()
                 : fmt::format("num-attention-heads is {}; expected at least ranks {}",
                               c.num_attention_heads, c.ranks);
    });
    const std::vector<std::string> orders{"contiguous", "striped", "zigzag"};
    const auto placements = vary(&Case::placement, orders),
               mpi = vary(&Case::transport, {Transport::mpi}),
               two_groups = vary(&Case::num_query_groups, {2});
    return sweep
        .slice({quick}, "usual", {})
        // Covers heads that ranks do not divide, and fewer heads of keys than ranks.
        .slice({quick}, "edges",
               {mpi, vary(&Case::dtype, {Dtype::bfloat16}), vary(&Case::ranks, {3}),
                vary(&Case::placement, {"striped"}), two_groups, vary(&Case::micro_batch_size, {2}),
                vary(&Case::seq_length, {61})})
        .slice({acceptance, paper}, "matrix",
               {vary(&Case::dtype, {Dtype::float32, Dtype::bfloat16}),
                vary(&Case::ranks, {1, 2, 3, 4}), placements, vary(&Case::causal, {true, false})})
        .slice({acceptance, paper}, "eight ranks",
               {vary(&Case::ranks, {8}), vary(&Case::num_attention_heads, {8, 10, 12}), two_groups})
        .slice({acceptance, paper}, "transports", {mpi, vary(&Case::ranks, {2, 4})})
        .slice({acceptance, paper}, "groups",
               {vary(&Case::ranks, {2, 3, 4}), vary(&Case::num_attention_heads, {4, 6, 8}),
                vary(&Case::num_query_groups, {1, 2}), vary(&Case::micro_batch_size, {2}),
                vary(&Case::seq_length, {61})})
        .slice({smoke}, "smoke",
               {vary(&Case::ranks, {1, 2, 3}), placements, vary(&Case::seq_length, {13}),
                vary(&Case::micro_batch_size, {2}), vary(&Case::num_query_groups, {1, 4}),
                vary(&Case::kv_channels, {4})})
        .slice({smoke}, "smoke",
               {vary(&Case::dtype, {Dtype::bfloat16}), vary(&Case::causal, {false}), two_groups,
                vary(&Case::seq_length, {13}), vary(&Case::kv_channels, {4})});
  }

  UlyssesAttention(const Case& c, Context& context)
      : ContextParallelShell(c, context), ulysses_(attention_) {
    ready();
  }

 private:
  void forward() override { ulysses_.forward(q_, k_, v_, out_, saved_, Category::activations); }
  void backward() override { ulysses_.backward(d_out_, gradients_, saved_); }

  ContextParallelClaims claims() const override {
    const ContextParallelSizes& z = sizes_;
    const Columns own = columns_of(case_, cp_.rank());
    const std::uint64_t w = own.queries, x = own.keys;
    ContextParallelClaims claims;
    const std::size_t log_sum_exp = z.T * (w / static_cast<std::uint64_t>(case_.kv_channels)) * z.A;
    claims.saved = log_sum_exp;
    if (z.P == 1) return claims;
    claims.saved += 2 * z.T * (w + x) * z.E;  // q, out, k, v of the own heads

    std::uint64_t X = 0;
    std::vector<int> copies(static_cast<std::size_t>(case_.num_query_groups));
    for (int rank = 0; rank < case_.ranks; ++rank) {
      const Columns theirs = columns_of(case_, rank);
      X += theirs.keys;
      for (std::uint64_t key = theirs.first_key; key <= theirs.last_key; ++key) ++copies[key];
    }
    const std::uint64_t queries_out = z.n * (z.D - w) * z.E, queries_in = (z.T - z.n) * w * z.E,
                        keys_out = z.n * (X - x) * z.E, keys_in = (z.T - z.n) * x * z.E;
    const machine::TrafficLabel label{Operation::all_to_all_v, case_.dtype};
    const std::uint64_t messages = 4 * (z.P - 1);
    claims.forward[label] = {queries_out + 2 * keys_out + queries_in, messages,
                             queries_in + 2 * keys_in + queries_out, messages};
    claims.backward[label] = {queries_out + queries_in + 2 * keys_in, messages,
                              queries_in + queries_out + 2 * keys_out, messages};

    // An exchange holds both of its messages. Backward holds d_out or the gradients of the own
    // heads meanwhile. If a head has copies, their sum and one of its terms follow the last two
    // exchanges.
    const std::uint64_t exchange = z.n * z.D + z.T * w;
    claims.buffers = z.E * (exchange + z.T * w + 2 * z.T * x);
    if (*std::ranges::max_element(copies) > 1)
      claims.buffers =
          std::max(claims.buffers, z.E * (z.n * X + 2 * z.T * x) + z.n * z.K * (z.E + z.A));
    return claims;
  }

  layers::UlyssesAttention ulysses_;
  layers::UlyssesAttention::Saved saved_;
};
const bool registered = harness::add<UlyssesAttention>();

}  // namespace
}  // namespace suite
