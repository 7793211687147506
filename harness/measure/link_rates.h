#pragma once
// Rates of receiving from another rank: each rank of the group receives from the previous rank, all
// at once. Returns the bytes received per second on this rank, for working sets (sent plus received
// bytes) in rising order. Collective over the group.

#include <cstdint>
#include <vector>

#include "machine/world/world.h"

namespace harness {

// Over shared_memory a receiver copies from the sender's memory: the same bytes repeatedly, without
// writes between, by the better way to store, as for local copies.
std::vector<double> peer_memory_rates(machine::World& world, const machine::Group& group,
                                      const std::vector<std::int64_t>& sets, bool shares_cores);
// The sender rewrites the bytes before each copy.
std::vector<double> fresh_memory_rates(machine::World& world, const machine::Group& group,
                                       const std::vector<std::int64_t>& sets, bool shares_cores);
// Over mpi, by MPI's own point-to-point.
std::vector<double> message_rates(machine::World& world, const machine::Group& group,
                                  const std::vector<std::int64_t>& sets);

}  // namespace harness
