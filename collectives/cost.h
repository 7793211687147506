#pragma once
// What a collective puts on the wire, from its paper's formula: bytes and messages that a rank
// sends and receives. Independent of the plans; the volume oracle compares the two.

#include <cstdint>

#include "collectives/plan.h"
#include "machine/link/link.h"

namespace collectives {

// One call among `ranks`; count: elements of the whole (all_reduce) or of a share (the others).
machine::Traffic expected_traffic(const Algorithm& algorithm, int rank, int ranks,
                                  std::int64_t count, machine::Dtype dtype);

// Bytes that a rank's plan keeps besides input and output: ring reduce-scatter two shares on their
// way (from 3 ranks on); direct reductions a share, the sum of what comes before its own (from rank
// 2 on); the one-step all-reduce its sum.
std::size_t scratch_bytes(const Algorithm& algorithm, int rank, int ranks, std::int64_t count,
                          machine::Dtype dtype);

// nccl-tests' factor from algbw = S/t to busbw (NVIDIA/nccl-tests, doc/PERFORMANCE.md): what a link
// carries when the algorithm is bandwidth-optimal.
double bus_factor(machine::Operation operation, int ranks);

}  // namespace collectives
