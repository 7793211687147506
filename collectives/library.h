#pragma once
// The MPI library's own collectives, on the same buffers: the yardstick of ours.

#include <cstdint>

#include "collectives/traffic_matrix.h"
#include "machine/device/kernels.h"
#include "machine/link/link.h"

namespace collectives {

struct LibraryCall {
  machine::Operation operation;
  machine::Dtype dtype;
  machine::Reduction reduction;
  std::int64_t count;  // elements of the whole, or of a share where the operation deals in shares
  int root = 0;
  bool in_place = false;
  const TrafficMatrix* traffic = nullptr;  // of all_to_all_v; count is then its busiest()
};

// bfloat16 and half go through a reduction operator of ours, since MPI has none; avg stays a sum,
// as in Kernels::reduce. Throws std::invalid_argument when the link is not over mpi, and when the
// count is beyond an int.
void run_library(const LibraryCall& call, machine::Link& link, machine::Kernels& kernels,
                 const void* input, void* output);

}  // namespace collectives
