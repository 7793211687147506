#include "machine/device/cuda/memory/pinned_memory.h"

#include "machine/device/cuda/runtime.h"
#include "machine/device/device_wait.h"

namespace machine::cuda {
namespace {

constexpr std::size_t arena_bytes = std::size_t{16} << 20;

}  // namespace

PinnedMemory::PinnedMemory(const Device& owner, int device,
                           const std::vector<cudaStream_t>& streams)
    : owner_(owner),
      device_(device),
      streams_(streams),
      arenas_(
          arena_bytes, [this](std::size_t bytes) { return take(bytes); },
          [](void* data) { cudaFreeHost(data); }),
      freed_(device) {}

void* PinnedMemory::take(std::size_t bytes) {
  arenas_.release_unused();  // so that cases of different sizes do not add up
  make_current(device_);
  void* data = nullptr;
  const cudaError_t status = cudaHostAlloc(&data, bytes, cudaHostAllocPortable);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check(device_, "cudaHostAlloc", status);
  return data;
}

void* PinnedMemory::allocate(std::size_t bytes) {
  const auto reuse = [this](void* data, std::size_t freed) { arenas_.free(data, freed); };
  freed_.give_ended(reuse);
  void* data = arenas_.allocate(bytes);
  while (!data && !freed_.empty()) {
    const DeviceWait waits(owner_);
    freed_.wait_for_oldest(reuse);
    data = arenas_.allocate(bytes);
  }
  return data;
}

void PinnedMemory::free(void* data, std::size_t bytes) {
  if (!freed_.keep(data, bytes, streams_)) arenas_.free(data, bytes);
}

}  // namespace machine::cuda
