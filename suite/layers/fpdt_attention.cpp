// Claim: Ulysses for one chunk of the sequence after another, with the chunks in host memory while
// none uses them (FPDT: Yao et al. 2024, arXiv:2408.16978), gives the whole attention's output and
// gradients. The device holds buffers of a few chunks: its memory falls with the size of a chunk,
// and only the log-sum-exp grows with the sequence. Ranks exchange as many bytes as with Ulysses. A
// chunk of queries reads the keys of all chunks before it, so the copies to the device grow with
// the square of the number of chunks. layers/context_parallel/context_cost.h has the closed
// formulas.

#include <fmt/format.h>

#include "suite/layers/context_parallel_unit.h"

namespace suite {
namespace {

struct FpdtAttention final : ContextParallelShell {
  static constexpr std::string_view name = "fpdt_attention";
  static constexpr std::string_view about =
      "attention over ranks by chunks of the sequence, which wait in host memory";

  static std::string why_no_chunks(const Case& c) {
    if (c.chunk_size < 1)
      throw harness::UsageError(fmt::format(
          "--ds-sequence-parallel-fpdt-chunk-size is {}; expected at least 1", c.chunk_size));
    if (c.num_attention_heads < c.ranks)
      return fmt::format("num-attention-heads is {}; expected at least ranks {}",
                         c.num_attention_heads, c.ranks);
    if (c.chunk_size < c.seq_length && c.chunk_size % c.ranks != 0)
      return fmt::format(
          "ds-sequence-parallel-fpdt-chunk-size is {}; expected a multiple of ranks {} (example: "
          "{})",
          c.chunk_size, c.ranks, (c.chunk_size / c.ranks + 1) * c.ranks);
    return {};
  }

  static Sweep<Case> sweep() {
    using enum Profile;
    Sweep<Case> sweep = context_parallel_axes({"striped"});
    sweep.axis("ds-sequence-parallel-fpdt-chunk-size", &Case::chunk_size, 48)
        .axis("ds-sequence-parallel-fpdt-offloading", &Case::offloading, true)
        .only(why_no_sizes)
        .only(why_no_chunks);
    const auto mpi = vary(&Case::transport, {Transport::mpi}),
               both = vary(&Case::offloading, {true, false}),
               two_groups = vary(&Case::num_query_groups, {2});
    return sweep
        .slice({quick}, "usual", {both})
        // Covers heads that ranks do not divide, fewer heads of keys than ranks, and a last chunk
        // that is shorter and that the ranks do not divide.
        .slice({quick}, "edges",
               {mpi, vary(&Case::dtype, {Dtype::bfloat16}), vary(&Case::ranks, {3}), two_groups,
                vary(&Case::micro_batch_size, {2}), vary(&Case::seq_length, {61}),
                vary(&Case::chunk_size, {24})})
        .slice({acceptance, paper}, "matrix",
               {vary(&Case::dtype, {Dtype::float32, Dtype::bfloat16}),
                vary(&Case::ranks, {1, 2, 3, 4}), vary(&Case::causal, {true, false}),
                vary(&Case::chunk_size, {24, 96, 256}), both})
        .slice({acceptance, paper}, "degrees",
               lengths_over_ranks({both, vary(&Case::chunk_size, {128})}))
        .slice({acceptance, paper}, "eight ranks",
               {vary(&Case::ranks, {8}), vary(&Case::num_attention_heads, {8, 10, 12}), two_groups})
        .slice({acceptance, paper}, "transports", {mpi, vary(&Case::ranks, {2, 4})})
        .slice({acceptance, paper}, "groups",
               {vary(&Case::ranks, {2, 3, 4}), vary(&Case::num_attention_heads, {4, 6, 8}),
                vary(&Case::num_query_groups, {1, 2}), vary(&Case::micro_batch_size, {2}),
                vary(&Case::seq_length, {61}), vary(&Case::chunk_size, {12})})
        .slice({smoke}, "smoke",
               {vary(&Case::ranks, {1, 2, 3}), vary(&Case::causal, {true, false}), both,
                vary(&Case::seq_length, {13}), vary(&Case::micro_batch_size, {2}),
                vary(&Case::num_query_groups, {1, 4}), vary(&Case::kv_channels, {4}),
                vary(&Case::chunk_size, {6})})
        .slice({smoke}, "smoke",
               {vary(&Case::dtype, {Dtype::bfloat16}), two_groups, vary(&Case::seq_length, {13}),
                vary(&Case::kv_channels, {4}), vary(&Case::chunk_size, {4, 16})});
  }

  FpdtAttention(const Case& c, Context& context)
      : ContextParallelShell(c, context, layers::CpCommType::a2a) {}
};
const bool registered = harness::add<FpdtAttention>();

}  // namespace
}  // namespace suite
