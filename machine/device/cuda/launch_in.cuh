#pragma once
// Launches in a stream, for functions outside of a device's Kernels.

#include "machine/device/cuda/internals.h"
#include "machine/device/cuda/launch.cuh"

namespace machine::cuda {

inline CudaLaunch launch_in(Stream& stream) {
  Device& device = stream.device();
  return CudaLaunch(Queue{device, internals(device).index, handle_of(stream)});
}

}  // namespace machine::cuda
