// Compares context-parallel attention with plain loops in double over whole sequences.

#include <fmt/format.h>

#include "layers/context_parallel/all_gather_attention.h"
#include "layers/context_parallel/context_parallel.h"
#include "layers/context_parallel/fpdt_attention.h"
#include "layers/context_parallel/hybrid_attention.h"
#include "layers/context_parallel/partial_attention.h"
#include "layers/context_parallel/ring_attention.h"
#include "layers/context_parallel/ulysses_attention.h"
#include "layers/testing/plain_attention.h"
#include "layers/testing/sharded_case.h"
#include "machine/testing/meeting_link.h"

namespace layers::testing {
namespace {

using machine::Category;
using machine::Dtype;
using machine::Tensor;
using Values = std::vector<double>;

enum class Algorithm { ring, all_gather, ulysses, hybrid, fpdt, fpdt_on_host };

struct Shape {
  std::int64_t sequences = 2, sequence = 16, heads = 4, kv_heads = 4, head = 6;
  bool causal = true;
  double spread = 1;  // deviation of queries and keys

  double scale() const { return 1 / std::sqrt(static_cast<double>(head)); }
  reference::PlainAttention plain() const {
    return {sequences, sequence, heads, kv_heads, head, scale(), causal};
  }
  std::int64_t size(std::int64_t of_heads) const { return sequences * sequence * of_heads * head; }
};

// Inputs and results of whole sequences.
struct Whole {
  Values q, k, v, d_out;
  reference::PlainAttention::Result result;
};
Whole whole_of(const Shape& shape, Dtype dtype) {
  const auto draw = [&](std::int64_t heads, unsigned seed, double spread) {
    return random_values(shape.size(heads), seed, dtype, spread);
  };
  Whole whole{draw(shape.heads, 1, shape.spread),
              draw(shape.kv_heads, 2, shape.spread),
              draw(shape.kv_heads, 3, 1),
              draw(shape.heads, 4, 1),
              {}};
  whole.result = shape.plain().run(whole.q, whole.k, whole.v, whole.d_out);
  return whole;
}

// Returns this rank's rows of a whole tensor, or the whole of all ranks' rows.
Values rows_of(const Values& whole, const Shape& shape, const SequencePlacement& placement,
               int rank) {
  const std::size_t width =
      whole.size() / static_cast<std::size_t>(shape.sequences * shape.sequence);
  Values mine;
  for (std::int64_t s = 0; s < shape.sequences; ++s)
    for (std::int64_t row = 0; row < placement.rows(rank); ++row) {
      const auto begin = whole.begin() + (s * shape.sequence + placement.position(rank, row)) *
                                             static_cast<std::ptrdiff_t>(width);
      mine.insert(mine.end(), begin, begin + static_cast<std::ptrdiff_t>(width));
    }
  return mine;
}

// Returns the distance, relative to the norm of values of order 1 in addition to those of `want`.
// The gradient of a query with one key is zero: a difference of two numbers of order 1.
double error(const Values& got, const Values& want) {
  if (got.size() != want.size()) return INFINITY;
  double distance = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    distance += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  return distance == 0
             ? 0
             : std::sqrt(distance) / (std::sqrt(size) + std::sqrt(static_cast<double>(got.size())));
}

// Runs both passes twice and compares this rank's rows by norms.
void check(Rank& rank, Algorithm algorithm, const Shape& shape, SequenceOrder order,
           const Whole& whole, double bound) {
  const SequencePlacement placement{order, shape.sequence, rank.tp.size(),
                                    algorithm == Algorithm::hybrid ? 2 : 1};
  const CoreAttention attention{
      rank.world.device(), rank.tp,        placement,  rank.context.dtype, shape.sequences,
      shape.heads,         shape.kv_heads, shape.head, shape.scale(),      shape.causal};
  const int mine = rank.tp.rank();
  const auto tensor = [&](std::int64_t width) {
    return attention.tensor({attention.tokens(), width}, Category::buffers);
  };
  const auto filled = [&](const Values& values, std::int64_t width) {
    const Tensor made = tensor(width);
    from_doubles(made, rows_of(values, shape, placement, mine));
    return made;
  };
  const Tensor d_out = filled(whole.d_out, attention.width());
  const Attended tensors{
      filled(whole.q, attention.width()), filled(whole.k, attention.kv_width()),
      filled(whole.v, attention.kv_width()), tensor(attention.width()),
      attention.sums({shape.sequences * shape.heads, attention.rows()}, Category::buffers)};
  const AttentionGradients gradients{tensor(attention.width()), tensor(attention.kv_width()),
                                     tensor(attention.kv_width())};
  std::vector<std::uint64_t> first;
  for (int repeat = 0; repeat < 2; ++repeat) {
    const Tensor results[] = {tensors.out, gradients.d_q, gradients.d_k, gradients.d_v};
    for (const Tensor& result : results) rank.context.kernels().fill(result, NAN);
    switch (algorithm) {
      case Algorithm::ring:
        ring_attention(attention, tensors);
        ring_attention_backward(attention, tensors, d_out, gradients);
        break;
      case Algorithm::all_gather:
        all_gather_attention(attention, tensors);
        all_gather_attention_backward(attention, tensors, d_out, gradients);
        break;
      case Algorithm::ulysses: {
        const UlyssesAttention ulysses(attention);
        UlyssesAttention::Saved saved;
        ulysses.forward(tensors.q, tensors.k, tensors.v, tensors.out, saved, Category::activations);
        ulysses.backward(d_out, gradients, saved);
        EXPECT_FALSE(saved.q);
        break;
      }
      case Algorithm::fpdt:
      case Algorithm::fpdt_on_host: {
        const auto host = machine::make_host_device_beside(rank.world.device());
        ChunkOffload offload(rank.world.device(),
                             algorithm == Algorithm::fpdt ? nullptr : host.get());
        const FpdtAttention chunked(attention, 2 * rank.tp.size(), offload);
        FpdtAttention::Saved saved;
        chunked.forward(tensors.q, tensors.k, tensors.v, tensors.out, saved, Category::activations);
        EXPECT_EQ(host->ledger().current() > 0, algorithm == Algorithm::fpdt_on_host);
        chunked.backward(d_out, gradients, saved);
        EXPECT_FALSE(saved.q);
        rank.world.device().stream().synchronize();
        break;
      }
      case Algorithm::hybrid: {
        const HybridGroups groups = hybrid_groups(rank.tp.group(), 2);
        const auto shared = machine::Transport::shared_memory;
        collectives::Communicator a2a(rank.world, groups.a2a, shared),
            p2p(rank.world, groups.p2p, shared);
        const HybridAttention hybrid(attention, a2a, p2p);
        HybridAttention::Saved saved;
        hybrid.forward(tensors.q, tensors.k, tensors.v, tensors.out, saved, Category::activations);
        hybrid.backward(d_out, gradients, saved);
        EXPECT_FALSE(saved.q);
        a2a.barrier();
        p2p.barrier();
        break;
      }
    }
    std::vector<std::uint64_t> bits;
    for (const Tensor& result : results) bits.push_back(hash(result));
    if (repeat == 0) first = bits;
    EXPECT_EQ(bits, first) << "the second run differs";
  }
  const auto near = [&](const char* what, const Tensor& got, const Values& want) {
    EXPECT_LE(error(to_doubles(got), rows_of(want, shape, placement, mine)), bound)
        << what << " of rank " << mine;
  };
  near("out", tensors.out, whole.result.out);
  near("d_q", gradients.d_q, whole.result.d_q);
  near("d_k", gradients.d_k, whole.result.d_k);
  near("d_v", gradients.d_v, whole.result.d_v);
}

double bound_of(const Shape& shape, Dtype dtype) {
  const std::int64_t group = shape.heads / shape.kv_heads;
  return norm_bound_from_double(dtype, 1,
                                static_cast<double>(std::max(shape.head, group * shape.sequence)));
}

void check_all(Algorithm algorithm, const Shape& shape, Dtype dtype, double factor = 1,
               const std::vector<int>& degrees = {1, 2, 3, 4}) {
  const Whole whole = whole_of(shape, dtype);
  const bool chunked = algorithm == Algorithm::fpdt || algorithm == Algorithm::fpdt_on_host;
  for (const int ranks : degrees)
    for (const SequenceOrder order : all_orders) {
      if (chunked && order != SequenceOrder::striped) continue;
      SCOPED_TRACE(fmt::format("{} ranks, {}, sequence {}, heads {}, kv_heads {}{}", ranks,
                               name(order), shape.sequence, shape.heads, shape.kv_heads,
                               shape.causal ? ", causal" : ""));
      on_ranks(ranks, dtype, [&](Rank& rank) {
        check(rank, algorithm, shape, order, whole, factor * bound_of(shape, dtype));
      });
    }
}

class ContextParallel : public ::testing::TestWithParam<Algorithm> {};

// Lengths that the degree divides, does not divide, and ranks without a row. Two sequences, so rows
// of the wrong sequence show.
TEST_P(ContextParallel, EveryPlacementAndLengthMatchesPlainLoops) {
  for (const bool causal : {true, false})
    for (const std::int64_t sequence : {16, 21, 3, 1})
      check_all(GetParam(), {.sequence = sequence, .causal = causal}, Dtype::float64);
}

// Fewer heads of keys than ranks, groups that ranks cut, and heads that ranks do not divide.
TEST_P(ContextParallel, GroupedQueriesMatchPlainLoops) {
  for (const auto& [heads, kv_heads] : {std::pair{4, 2}, {4, 1}, {6, 2}, {5, 5}, {8, 4}})
    check_all(GetParam(), {.sequence = 13, .heads = heads, .kv_heads = kv_heads}, Dtype::float64);
}

// An all-to-all of two ranks inside rings of two and three ranks, also with ranks without a row.
TEST(HybridAttention, EveryPlacementAndLengthMatchesPlainLoops) {
  for (const std::int64_t sequence : {16, 21, 3})
    for (const int kv_heads : {4, 2})
      check_all(Algorithm::hybrid, {.sequence = sequence, .kv_heads = kv_heads}, Dtype::float64, 1,
                {4, 6});
}

TEST_P(ContextParallel, EveryDtypeIsNearDouble) {
  for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float16})
    check_all(GetParam(), {.sequence = 26, .kv_heads = 2}, dtype, 1, {1, 4});
}

// Without the subtraction of a maximum, exp of these scores is infinite. The rounding of a score
// grows with its size (about 1000), so does the bound.
TEST_P(ContextParallel, LargeScoresStayFinite) {
  check_all(GetParam(), {.sequence = 24, .spread = 20}, Dtype::float64, 1e3);
  check_all(GetParam(), {.sequence = 24, .spread = 20}, Dtype::float32, 1e3, {4});
}

std::string name_of(const ::testing::TestParamInfo<Algorithm>& info) {
  constexpr const char* names[] = {"ring",   "all_gather", "ulysses",
                                   "hybrid", "fpdt",       "fpdt_on_host"};
  return names[static_cast<std::size_t>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(, ContextParallel,
                         ::testing::Values(Algorithm::ring, Algorithm::all_gather,
                                           Algorithm::ulysses, Algorithm::fpdt,
                                           Algorithm::fpdt_on_host),
                         name_of);

// Blocks that a query does not see, before and after its own, leave no NaN.
TEST(PartialOutput, QueriesWithoutKeysOfABlockKeepTheirSum) {
  const Shape shape{.sequences = 1, .sequence = 4, .heads = 1, .kv_heads = 1};
  const Whole whole = whole_of(shape, Dtype::float64);
  on_ranks(1, Dtype::float64, [&](Rank& rank) {
    const CoreAttention attention{.device = rank.world.device(),
                                  .cp = rank.tp,
                                  .placement = {SequenceOrder::contiguous, 4, 1},
                                  .dtype = Dtype::float64,
                                  .head = shape.head,
                                  .scale = shape.scale()};
    const auto tensor = [&](const Values& values) {
      const Tensor made = attention.tensor({4, shape.head}, Category::buffers);
      from_doubles(made, values);
      return made;
    };
    const Tensor q = tensor(whole.q), k = tensor(whole.k), v = tensor(whole.v),
                 out = tensor(Values(whole.q.size(), NAN)),
                 log_sum_exp = attention.sums({1, 4}, Category::buffers);
    const PartialOutput output(attention, log_sum_exp);
    // The mask as a full square below the diagonal and two triangles.
    output.add(q, k, v, {2, 2, 0, 2, false});
    EXPECT_EQ(to_doubles(log_sum_exp)[0], -INFINITY);
    output.add(q, k, v, {0, 2, 0, 2, true});
    output.add(q, k, v, {2, 2, 2, 2, true});
    output.store(out);
    EXPECT_LE(relative_error(to_doubles(out), whole.result.out), bound_of(shape, Dtype::float64));
    for (const double sum : to_doubles(log_sum_exp)) EXPECT_TRUE(std::isfinite(sum));
  });
}

// Over a link whose sends wait for their receives (nccl), every rank makes the same exchanges in
// the same order.
TEST(RingAttention, WorksOverRendezvousLinks) {
  const Shape shape{.sequence = 13, .kv_heads = 2};
  const Whole whole = whole_of(shape, Dtype::float64);
  for (const int ranks : {2, 3, 4}) {
    machine::MeetingPoint point;
    machine::run_ranks(ranks, [&](machine::World& world) {
      collectives::Communicator cp(world,
                                   std::make_unique<machine::MeetingLink>(world.group(), point));
      Rank rank{world, cp, {world.device(), cp, Dtype::float64}};
      check(rank, Algorithm::ring, shape, SequenceOrder::zigzag, whole,
            bound_of(shape, Dtype::float64));
      world.barrier(world.group());
    });
  }
}

// Ring: P - 1 blocks of keys and values in dtype forward, the same and P - 1 sums of gradients in
// float backward. With equal shares these are the numbers of ring_attention.h.
TEST(RingAttention, SendsEveryBlockRanksMinusOneTimes) {
  static constexpr int P = 4;
  on_ranks(P, Dtype::bfloat16, [&](Rank& rank) {
    const CoreAttention attention{.device = rank.world.device(),
                                  .cp = rank.tp,
                                  .placement = {SequenceOrder::zigzag, 16, P},
                                  .dtype = Dtype::bfloat16,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .head = 8};
    const auto tensor = [&](std::int64_t width) {
      const Tensor made = attention.tensor({attention.tokens(), width}, Category::buffers);
      rank.context.kernels().fill(made, 0.5);
      return made;
    };
    const Attended tensors{tensor(32), tensor(16), tensor(16), tensor(32),
                           attention.sums({4, attention.rows()}, Category::buffers)};
    const machine::TrafficLabel keys{machine::Operation::send_receive, Dtype::bfloat16},
        gradients{machine::Operation::send_receive, Dtype::float32};
    const auto traffic = [](std::uint64_t bytes) {
      return machine::Traffic{bytes, P - 1, bytes, P - 1};
    };
    rank.tp.link().reset_traffic();
    ring_attention(attention, tensors);
    const std::uint64_t elements = 2 * (P - 1) * 4 * 16;  // 4 tokens of 16 columns
    EXPECT_EQ(rank.tp.link().traffic().at(keys), traffic(2 * elements));
    rank.tp.link().reset_traffic();
    ring_attention_backward(attention, tensors, tensor(32), {tensor(32), tensor(16), tensor(16)});
    EXPECT_EQ(rank.tp.link().traffic().at(keys), traffic(2 * elements));
    EXPECT_EQ(rank.tp.link().traffic().at(gradients), traffic(4 * elements));
  });
}

}  // namespace
}  // namespace layers::testing
