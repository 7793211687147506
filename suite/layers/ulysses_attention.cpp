// Claim: attention whose sequence is split over ranks, and during the attention its heads instead
// (Jacobs et al. 2023, arXiv:2309.14509), gives the whole attention's output and gradients. Each
// pass is four all-to-all. Ranks need not divide the heads, and ranks that share a head of keys
// each hold a copy, whose gradients are summed.
// layers/context_parallel/context_cost.h has the closed formulas.

#include <fmt/format.h>

#include <algorithm>

#include "suite/layers/context_parallel_unit.h"

namespace suite {
namespace {

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
        .slice({acceptance, paper}, "degrees", lengths_over_ranks())
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
      : ContextParallelShell(c, context, layers::CpCommType::a2a) {}
};
const bool registered = harness::add<UlyssesAttention>();

}  // namespace
}  // namespace suite
