#include "machine/link/connect.h"

#include <fmt/format.h>

#include "machine/base/error.h"
#include "machine/link/cuda_links.h"
#include "machine/link/faulty_link.h"
#include "machine/link/mpi.h"
#include "machine/link/shared_memory.h"
#include "machine/world/control/mpi_calls.h"
#include "machine/world/control/wait.h"

namespace machine {
namespace {

// Returns the reason why this rank cannot reach a member's memory, or empty.
std::string why_not_memory_of(const World& world, Transport transport, int member) {
  const Board& board = world.board();
  const RankStatus* theirs = board.of(member);
  if (!theirs)
    return fmt::format("transport {} requires ranks of one host; rank {} is on {}, rank {} on {}",
                       name(transport), world.rank(), world.host(world.rank()), member,
                       world.host(member));
  if (transport == Transport::shared_memory) return "";
  const std::string reason =
      cuda::why_not_peers(board.of(world.rank())->device.load(), theirs->device.load());
  return reason.empty() ? ""
                        : fmt::format("transport cuda_ipc: rank {} cannot reach rank {}: {}",
                                      world.rank(), member, reason);
}

std::string why_not_nccl(const World& world, const Group& group) {
  if (!cuda::has_nccl()) return "transport nccl: this program was built without NCCL";
  int here = 0;
  for (const int member : group.members) here += world.board().of(member) != nullptr;
  if (const int devices = world.devices_of(group); devices < here)
    return fmt::format(
        "transport nccl requires {} GPUs (got {}); cuda_ipc supports several ranks per GPU", here,
        devices);
  return "";
}

}  // namespace

std::unique_ptr<Link> connect(World& world, const Group& group, Transport transport,
                              LinkStream stream) {
  if (const std::string reason = why_not(world, group, transport); !reason.empty())
    throw MachineError(reason);
  if (transport == Transport::cuda_ipc) return cuda::connect_ipc(world, group, stream);
  if (transport == Transport::nccl) return cuda::connect_nccl(world, group, stream);
  std::unique_ptr<Link> link;
  if (transport == Transport::mpi)
    link = std::make_unique<MpiLink>(group, make_communicator(group, world.wait_policy()),
                                     world.wait_policy());
  else
    link = std::make_unique<SharedMemoryLink>(world, group);
  return with_faults(std::move(link), world.faults());
}

std::string why_not(const World& world, const Group& group, Transport transport) {
  if (between_devices(transport) && !world.computes_on_gpu())
    return fmt::format("transport {} requires --device cuda", name(transport));
  if (transport == Transport::nccl) return why_not_nccl(world, group);
  if (transport == Transport::mpi)
    return world.ranks_are_threads()
               ? "transport mpi requires ranks that are processes (got threads)"
               : "";
  for (const int member : group.members)
    if (std::string reason = why_not_memory_of(world, transport, member); !reason.empty())
      return reason;
  return "";
}

}  // namespace machine
