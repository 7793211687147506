#pragma once
// The MPI library's own collectives, on the same buffers: the yardstick of ours.

#include <cstdint>

#include "machine/device/kernels.h"
#include "machine/link/link.h"

namespace collectives {

// count: elements of the whole (all_reduce) or of a share (the others). bfloat16 and half go
// through a reduction operator of ours, since MPI has none. Throws std::invalid_argument when the
// link is not over mpi.
void run_library(machine::Operation operation, machine::Link& link, machine::Kernels& kernels,
                 machine::Dtype dtype, machine::Reduction reduction, const void* input,
                 void* output, std::int64_t count);

}  // namespace collectives
