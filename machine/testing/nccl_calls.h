#pragma once
// For tests on the virtual GPU: calls of NCCL. They show whether a group ran NCCL's own collectives
// or plans, which send.

#include <cstdint>
#include <optional>

#ifdef SHARDMARK_VIRTUAL_GPU
#include "machine/virtual_gpu/counts.h"
#endif

namespace machine {

struct NcclCalls {
  std::uint64_t sends = 0, all_reduces = 0, all_gathers = 0, reduce_scatters = 0;
};

// Returns the calls of this process so far, or nothing without a virtual GPU.
inline std::optional<NcclCalls> nccl_calls() {
#ifdef SHARDMARK_VIRTUAL_GPU
  const virtual_gpu::Counts& counts = virtual_gpu::counts;
  return NcclCalls{counts.nccl_sends, counts.nccl_all_reduces, counts.nccl_all_gathers,
                   counts.nccl_reduce_scatters};
#else
  return {};
#endif
}

}  // namespace machine
