#pragma once
// A gate in a stream: a kernel of one thread that waits for a word in host memory.

#include <cuda_runtime_api.h>

#include <memory>

#include "machine/device/device.h"

namespace machine::cuda {

std::unique_ptr<Gate> make_gate(int device, cudaStream_t stream, double deadline_s);

}  // namespace machine::cuda
