#pragma once
// Links among the ranks of a group.
//
//   std::unique_ptr<Link> link = connect(world, grid.group(Axis::tp), Transport::shared_memory);

#include <memory>
#include <string>

#include "machine/link/link.h"
#include "machine/world/world.h"

namespace machine {

// Creates a link with the world's faults (World::faults). Collective over the group. Throws
// MachineError with why_not's reason if this transport cannot connect the ranks. `stream` is only
// for cuda_ipc and nccl.
std::unique_ptr<Link> connect(World& world, const Group& group, Transport transport,
                              LinkStream stream = LinkStream::of_device);

// Returns the reason why connect would fail, or empty. Each rank checks only its own host.
std::string why_not(const World& world, const Group& group, Transport transport);

}  // namespace machine
