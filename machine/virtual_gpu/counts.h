#pragma once
// Counts of calls that take time on hardware, for tests. Of the whole process.

#include <atomic>
#include <cstdint>

namespace machine::virtual_gpu {

struct Counts {
  // Copies between a device and pageable memory: on hardware, the host waits for them.
  std::atomic<std::uint64_t> pageable_copies;
  std::atomic<std::uint64_t> function_attributes;  // calls of cudaFuncSetAttribute
  // Calls of ncclSend and of NCCL's own collectives.
  std::atomic<std::uint64_t> nccl_sends, nccl_all_reduces, nccl_all_gathers, nccl_reduce_scatters;
};
inline Counts counts;

}  // namespace machine::virtual_gpu
