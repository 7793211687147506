#pragma once
// Links among the ranks of a group.
//
//   std::unique_ptr<Link> link = connect(world, grid.group(Axis::tp), Transport::shared_memory);

#include <memory>
#include <string>

#include "machine/link/link.h"
#include "machine/world/world.h"

namespace machine {

// A new link, with the faults that the world has (World::faults). Collective over the group. Throws
// MachineError with why_not's reason when this transport cannot join the ranks.
std::unique_ptr<Link> connect(World& world, const Group& group, Transport transport);

// Why connect would refuse, or empty. Each rank answers for its own host.
std::string why_not(const World& world, const Group& group, Transport transport);

}  // namespace machine
