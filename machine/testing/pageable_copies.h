#pragma once
// For tests on the virtual GPU: copies between a device and pageable host memory. On hardware, the
// host waits for them.

#include <cstdint>
#include <optional>

#ifdef SHARDMARK_VIRTUAL_GPU
#include "machine/virtual_gpu/counts.h"
#endif

namespace machine {

// Returns the number of copies so far, or nothing without a virtual GPU.
inline std::optional<std::uint64_t> pageable_copies() {
#ifdef SHARDMARK_VIRTUAL_GPU
  return virtual_gpu::counts.pageable_copies;
#else
  return {};
#endif
}

}  // namespace machine
