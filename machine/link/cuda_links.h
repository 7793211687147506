#pragma once
// The transports between CUDA devices, of builds that have CUDA.

#include <memory>
#include <string>

#include "machine/link/link.h"

namespace machine {
class World;
namespace cuda {

bool has_nccl();
// Returns the reason why device `from` (Device::identity) cannot read the memory of `to`, or empty.
std::string why_not_peers(std::uint64_t from, std::uint64_t to);

// Collective over the group, whose ranks compute on CUDA devices (why_not checks this). If one rank
// fails, all ranks throw MachineError.
std::unique_ptr<Link> connect_ipc(World& world, const Group& group, LinkStream stream);
std::unique_ptr<Link> connect_nccl(World& world, const Group& group, LinkStream stream);

}  // namespace cuda
}  // namespace machine
