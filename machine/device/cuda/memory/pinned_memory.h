#pragma once
// Host memory that a CUDA device copies without the host (CUDA C++ Programming Guide, "Page-Locked
// Host Memory"). Pinning takes longer than most copies, so freed memory is kept for later use.

#include <cuda_runtime_api.h>

#include <vector>

#include "machine/device/arena/arenas.h"
#include "machine/device/cuda/memory/freed_blocks.h"
#include "machine/device/device.h"

namespace machine::cuda {

class PinnedMemory final : public HostMemory {
 public:
  // streams: those of the device. They may use memory that is freed.
  PinnedMemory(const Device& owner, int device, const std::vector<cudaStream_t>& streams);
  void* allocate(std::size_t bytes) override;
  void free(void* data, std::size_t bytes) override;

 private:
  void* take(std::size_t bytes);

  const Device& owner_;
  int device_;
  const std::vector<cudaStream_t>& streams_;
  Arenas arenas_;
  FreedBlocks freed_;
};

}  // namespace machine::cuda
