#pragma once
// Internals of a CUDA device for the links between devices.

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
// Throws std::bad_cast if the device is not a CUDA device.
Internals internals(Device& device);
// Throws std::bad_cast if the stream is not of a CUDA device.
cudaStream_t handle_of(Stream& stream);

// Returns the number of this process's device with that Device::identity, or -1.
int index_of(std::uint64_t identity);

}  // namespace machine::cuda
