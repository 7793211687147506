#pragma once
// Rates of receiving from another rank: each rank of the group receives from the previous rank, all
// at once. In bytes received per second on this rank, by working set (sent plus received bytes) in
// rising order.

#include <cstdint>
#include <vector>

#include "machine/link/link.h"
#include "machine/world/world.h"

namespace harness {

// unchanged: the same bytes repeatedly. fresh: the sender rewrites them before each copy. Only
// shared_memory has two rates.
struct ReceivingRates {
  std::vector<double> unchanged, fresh;
};

// Over shared_memory a receiver copies from the sender's memory, by the faster way to store, as for
// local copies. Over mpi and between devices the link moves the bytes. Between devices, that is
// memory of the world's device, in stream order. Empty if the transport cannot connect the group,
// or a rank has no memory for it. Collective over the group.
ReceivingRates receiving_rates(machine::World& world, const machine::Group& group,
                               machine::Transport transport, const std::vector<std::int64_t>& sets);

}  // namespace harness
