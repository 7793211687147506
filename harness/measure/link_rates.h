#pragma once
// How fast bytes come from another rank: each rank of the group receives from the one before it,
// all at once. Bytes received per second on this rank, for working sets (what a rank sends and what
// it receives) in rising order. Collective over the group.

#include <cstdint>
#include <vector>

#include "machine/world/world.h"

namespace harness {

// Over shared_memory a receiver copies from the sender's memory. The same bytes again and again,
// which nobody writes; the better way to store, as for local copies.
std::vector<double> peer_memory_rates(machine::World& world, const machine::Group& group,
                                      const std::vector<std::int64_t>& sets, bool shares_cores);
// Written by the sender anew before each copy.
std::vector<double> fresh_memory_rates(machine::World& world, const machine::Group& group,
                                       const std::vector<std::int64_t>& sets, bool shares_cores);
// Over mpi, by MPI's own point-to-point.
std::vector<double> message_rates(machine::World& world, const machine::Group& group,
                                  const std::vector<std::int64_t>& sets);

}  // namespace harness
