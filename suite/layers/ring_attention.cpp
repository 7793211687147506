// Claim: attention with its sequence split over ranks gives the whole attention's output and
// gradients. By p2p (Liu, Zaharia and Abbeel 2023, arXiv:2310.01889) every block of keys and values
// goes around the ring once forward and once backward, and the sum of its gradients goes with it to
// its owner, so a rank holds four blocks at a time. By all_gather (Llama team 2024,
// arXiv:2407.21783, section 3.3.2) a rank gathers all blocks in each pass, and a reduce-scatter
// sums the gradients. By a2a+p2p (Fang and Zhao 2024, arXiv:2405.07719) ranks exchange their rows
// for heads in small groups, and the ring is shorter. Zigzag and striped placement (Brandon et al.
// 2023, arXiv:2311.09431) balance a causal mask. layers/context_parallel/context_cost.h has the
// closed formulas.

#include "suite/layers/context_parallel_unit.h"

namespace suite {
namespace {

struct RingAttention final : ContextParallelShell {
  static constexpr std::string_view name = "ring_attention";
  static constexpr std::string_view about =
      "attention with its sequence split over ranks: keys and values go around a ring";

  static Sweep<Case> sweep() {
    using enum Profile;
    Sweep<Case> sweep = context_parallel_axes();
    sweep.axis("cp-comm-type", &Case::cp_comm_type, "p2p", {"p2p", "all_gather", "a2a+p2p"})
        .axis("cp-a2a-size", &Case::cp_a2a_size, 2)
        .only(why_no_sizes);
    const std::vector<std::string> orders{"contiguous", "striped", "zigzag"};
    const auto types = vary(&Case::cp_comm_type, {"p2p", "all_gather", "a2a+p2p"}),
               placements = vary(&Case::placement, orders),
               mpi = vary(&Case::transport, {Transport::mpi}),
               bfloat16 = vary(&Case::dtype, {Dtype::bfloat16}),
               two_groups = vary(&Case::num_query_groups, {2});
    return sweep
        .slice({quick}, "usual", {types})
        // Covers shares of different lengths, and rows of the wrong sequence.
        .slice({quick}, "edges",
               {mpi, bfloat16, vary(&Case::ranks, {3}), vary(&Case::placement, {"striped"}),
                two_groups, vary(&Case::micro_batch_size, {2}), vary(&Case::seq_length, {61})})
        .slice({quick}, "edges",
               {vary(&Case::ranks, {2}), vary(&Case::placement, {"contiguous"}),
                vary(&Case::causal, {false}), vary(&Case::seq_length, {61})})
        .slice({acceptance, paper}, "matrix",
               {vary(&Case::dtype, {Dtype::float32, Dtype::bfloat16}),
                vary(&Case::ranks, {1, 2, 3, 4, 8}), types, placements})
        .slice({acceptance, paper}, "degrees", lengths_over_ranks({types}))
        .slice({acceptance, paper}, "without mask",
               {types, placements, vary(&Case::causal, {false})})
        .slice({acceptance, paper}, "transports", {mpi, types, vary(&Case::ranks, {2, 4})})
        .slice({acceptance, paper}, "groups",
               {types, vary(&Case::ranks, {3, 4}), vary(&Case::num_query_groups, {1, 2}),
                vary(&Case::micro_batch_size, {2}), vary(&Case::seq_length, {61})})
        .slice({smoke}, "smoke",
               {vary(&Case::ranks, {1, 3}), types, placements, vary(&Case::seq_length, {13}),
                vary(&Case::micro_batch_size, {2}), two_groups, vary(&Case::kv_channels, {4})})
        .slice({smoke}, "smoke",
               {bfloat16, vary(&Case::ranks, {2}), types, vary(&Case::causal, {false}),
                vary(&Case::seq_length, {13}), vary(&Case::kv_channels, {4})});
  }

  RingAttention(const Case& c, Context& context)
      : ContextParallelShell(c, context, layers::cp_comm_type(c.cp_comm_type)) {}
};
const bool registered = harness::add<RingAttention>();

}  // namespace
}  // namespace suite
