#pragma once
// The libraries' own collectives on the same buffers, as a reference for ours: MPI's over mpi, and
// NCCL's over nccl, queued on the link's stream.

#include <cstdint>
#include <string>

#include "collectives/traffic_matrix.h"
#include "machine/device/kernels.h"
#include "machine/link/link.h"

namespace collectives {

struct LibraryCall {
  machine::Operation operation;
  machine::Dtype dtype;
  machine::Reduction reduction;
  std::int64_t count;  // elements of the whole buffer, or of a share (deals_in_shares)
  int root = 0;
  bool in_place = false;
  const TrafficMatrix* traffic = nullptr;  // for all_to_all_v; count is its busiest()
};

// Runs the library's collective. avg is NCCL's own. Over MPI it is the sum, divided here. MPI
// reduces bfloat16, half and float8 with our operator. Throws std::invalid_argument if the link
// uses neither library, or if the count exceeds an int of MPI.
void run_library(const LibraryCall& call, machine::Link& link, machine::Kernels& kernels,
                 const void* input, void* output);

// Runs NCCL's collective, in builds that have NCCL. all_to_all_v and send_receive, for which NCCL
// has no call, are groups of its sends and receives; so are gather, scatter and all_to_all before
// NCCL 2.28. barrier is an all-reduce of a byte.
void run_nccl(const LibraryCall& call, machine::Link& link, const void* input, void* output);
// Returns why NCCL's operation on such a device is not run, or empty. NCCL reduces 8-bit floats
// from sm_90. Its avg multiplies floating terms by 1/n before it adds them, which rounds unless n
// is a power of two; so it is not compared with the exact average.
std::string why_not_nccl(machine::Operation operation, machine::Reduction reduction,
                         machine::Dtype dtype, int ranks, int compute_capability);

}  // namespace collectives
