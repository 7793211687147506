// Claim: attention with its sequence split over ranks gives the whole attention's output and
// gradients. By p2p (Liu, Zaharia and Abbeel 2023, arXiv:2310.01889) every block of keys and values
// goes around the ring once forward and once backward, and the sum of its gradients goes with it to
// its owner, so a rank holds four blocks at a time. By all_gather (Llama team 2024,
// arXiv:2407.21783, section 3.3.2) a rank gathers all blocks in each pass, and a reduce-scatter
// sums the gradients. Zigzag and striped placement (Brandon et al. 2023, arXiv:2311.09431) balance
// a causal mask.
//
// p2p, of rank r: blocks of T - n_{r+1} tokens are sent forward, all but the next rank's own, and
// again backward, with the gradients of all but the own block. With equal shares of n tokens:
//   forward   2 (P-1) n K E bytes        backward   2 (P-1) n K (E + A) bytes
// all_gather: shares are as long as the longest, m tokens. Forward gathers 2 P m K values, backward
// again, and reduces as many accumulators.

#include "layers/context_parallel/ring_attention.h"

#include "layers/context_parallel/all_gather_attention.h"
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
    sweep.axis("cp-comm-type", &Case::cp_comm_type, "p2p", {"p2p", "all_gather"})
        .only(why_no_sizes);
    const std::vector<std::string> orders{"contiguous", "striped", "zigzag"};
    const auto types = vary(&Case::cp_comm_type, {"p2p", "all_gather"}),
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

  RingAttention(const Case& c, Context& context) : ContextParallelShell(c, context) {
    log_sum_exp_ = attention_.sums({attention_.sequences * attention_.heads, attention_.rows()},
                                   Category::activations);
    ready();
  }

 private:
  bool gathers() const { return case_.cp_comm_type == "all_gather"; }
  layers::Attended tensors() const { return {q_, k_, v_, out_, log_sum_exp_}; }

  void forward() override {
    if (gathers())
      layers::all_gather_attention(attention_, tensors());
    else
      layers::ring_attention(attention_, tensors());
  }
  void backward() override {
    if (gathers())
      layers::all_gather_attention_backward(attention_, tensors(), d_out_, gradients_);
    else
      layers::ring_attention_backward(attention_, tensors(), d_out_, gradients_);
  }

  ContextParallelClaims claims() const override {
    const ContextParallelSizes& z = sizes_;
    ContextParallelClaims claims;
    claims.saved = z.n * z.H * z.A;
    if (z.P == 1) return claims;
    // Both: the sum of a rank's output or of its queries' gradient, a part of it in the dtype, and
    // the part's logarithms; backward also the keys' gradients of a part.
    claims.buffers = z.n * z.D * (z.A + z.E) + z.n * z.H * z.A + 2 * z.m * z.K * z.E;
    const Dtype sums = attention_.accumulator();
    if (gathers()) {
      const auto elements = static_cast<std::int64_t>(2 * z.P * z.m * z.K);
      const collectives::CollectiveCalls gather{
          "cp", Operation::all_gather, case_.dtype, case_.ranks, elements, 1},
          reduce{"cp", Operation::reduce_scatter, sums, case_.ranks, elements, 1};
      collectives::CallsCost forward, backward;
      for (const auto* calls : {&gather, &reduce})
        backward.add(*calls, collectives::usual_algorithm(*calls, case_.transport), cp_.rank());
      forward.add(gather, collectives::usual_algorithm(gather, case_.transport), cp_.rank());
      claims.forward = forward.traffic("cp");
      claims.backward = backward.traffic("cp");
      claims.scratch = backward.scratch();
      claims.buffers += 2 * z.P * z.m * z.K * (z.E + z.A);
      return claims;
    }
    const auto pair = [&](std::uint64_t tokens, std::uint64_t size) {
      return 2 * tokens * z.K * size;
    };
    const machine::TrafficLabel keys{Operation::send_receive, case_.dtype},
        of_keys{Operation::send_receive, sums};
    const machine::Traffic blocks{pair(z.T - z.next, z.E), z.P - 1, pair(z.T - z.n, z.E), z.P - 1};
    claims.forward[keys] += blocks;
    claims.backward[keys] += blocks;
    claims.backward[of_keys] +=
        {pair(z.T - z.n, z.A), z.P - 1, pair(z.T - z.previous, z.A), z.P - 1};
    // Two blocks of keys and values, two sums of gradients, and the own sum.
    claims.buffers += 2 * pair(z.m, z.E) + 2 * pair(z.m, z.A) + pair(z.n, z.A);
    return claims;
  }

  Tensor log_sum_exp_;
};
const bool registered = harness::add<RingAttention>();

}  // namespace
}  // namespace suite
