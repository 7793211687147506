#include "layers/context_parallel/hybrid_attention.h"

#include "machine/base/error.h"

namespace layers {
namespace {

// Returns the attention of a rank of a2a, whose group has the rows of one rank of the ring.
CoreAttention inside(const CoreAttention& all, collectives::Communicator& a2a,
                     const collectives::Communicator& p2p) {
  const std::int64_t rows = all.placement.outer().rows(p2p.rank());
  return {all.device,   a2a,           {SequenceOrder::contiguous, rows, a2a.size()},
          all.dtype,    all.sequences, all.heads,
          all.kv_heads, all.head,      all.scale,
          all.causal};
}

CoreAttention outside(const CoreAttention& all, const collectives::Communicator& a2a,
                      collectives::Communicator& p2p) {
  const HeadSplit split{all.heads, all.kv_heads, a2a.size()};
  return {all.device,
          p2p,
          all.placement.outer(),
          all.dtype,
          all.sequences,
          split.queries(a2a.rank()).size(),
          split.keys(a2a.rank()).size(),
          all.head,
          all.scale,
          all.causal};
}

}  // namespace

HybridAttention::HybridAttention(const CoreAttention& attention, collectives::Communicator& a2a,
                                 collectives::Communicator& p2p)
    : inside_(inside(attention, a2a, p2p)),
      outside_(outside(attention, a2a, p2p)),
      ulysses_(inside_, &outside_) {
  SHARDMARK_CHECK(attention.placement.inner, ==, a2a.size());
  SHARDMARK_CHECK(attention.placement.ranks, ==, a2a.size() * p2p.size());
}

}  // namespace layers
