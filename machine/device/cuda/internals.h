#pragma once
// A CUDA device as the links between devices need it.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "machine/device/arena/arenas.h"
#include "machine/device/device.h"

namespace machine::cuda {

struct Internals {
  int index;            // of the device
  cudaStream_t stream;  // device.stream()
  const Arenas* arenas;
};
// Throws std::bad_cast for a device of another kind.
Internals internals(Device& device);

// The device of this process with that Device::identity, or -1.
int index_of(std::uint64_t identity);

}  // namespace machine::cuda
