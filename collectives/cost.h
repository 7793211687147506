#pragma once
// The bytes and messages that a rank sends and receives in a collective, by its paper's formula.
// Independent of the plans; the volume oracle compares the two.

#include <cstdint>

#include "collectives/plan.h"
#include "machine/link/link.h"

namespace collectives {

// Returns the traffic of one call, with its pieces chosen here. count: elements of the whole
// buffer, or of a share (deals_in_shares); for all_to_all_v TrafficMatrix::busiest(). Empty chunks
// are also sent, as messages of zero bytes.
machine::Traffic expected_traffic(const Algorithm& algorithm, const Call& call, std::int64_t count,
                                  machine::Dtype dtype);

// Returns the bytes that a rank's plan keeps in addition to input and output: the algorithm's bays,
// each as long as the longest chunk.
std::size_t scratch_bytes(const Algorithm& algorithm, const Call& call, std::int64_t count,
                          machine::Dtype dtype);

// Returns nccl-tests' factor from algbw = S/t to busbw (NVIDIA/nccl-tests, doc/PERFORMANCE.md), the
// rate of a link if the algorithm is bandwidth-optimal.
double bus_factor(machine::Operation operation, int ranks);

}  // namespace collectives
