#pragma once
// A gate in a stream: a kernel of one thread that waits for a word in host memory.

#include <memory>

#include "machine/device/cuda/runtime.h"
#include "machine/device/device.h"

namespace machine::cuda {

std::unique_ptr<Gate> make_gate(const Queue& queue, double deadline_s);

}  // namespace machine::cuda
