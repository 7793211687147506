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

std::unique_ptr<Link> connect_shared_memory(World& world, const Group& group) {
  const World::SharedMemory shared = world.shared_memory();
  SharedMemoryLink::Wiring wiring;
  wiring.own = {shared.base, shared.bytes};
  wiring.staging = shared.memory;
  for (const int member : group.members)
    wiring.bases.push_back(shared.bases[static_cast<std::size_t>(member)]);
  wiring.ends = make_channels(world, group);
  return std::make_unique<SharedMemoryLink>(group, std::move(wiring), world.wait_policy());
}

std::string other_host(const World& world, Transport transport, int member) {
  return fmt::format("transport {} needs ranks of one host; rank {} is on {}, rank {} on {}",
                     name(transport), world.rank(), world.host(world.rank()), member,
                     world.host(member));
}

std::string why_not_shared_memory(const World& world, const Group& group) {
  for (const int member : group.members)
    if (!world.board().of(member)) return other_host(world, Transport::shared_memory, member);
  return "";
}

std::string why_not_cuda_ipc(const World& world, const Group& group) {
  const std::uint64_t device = world.board().of(world.rank())->device.load();
  for (const int member : group.members) {
    const RankStatus* status = world.board().of(member);
    if (!status) return other_host(world, Transport::cuda_ipc, member);
    if (const std::string reason = cuda::why_not_peers(device, status->device.load());
        !reason.empty())
      return fmt::format("transport cuda_ipc: rank {} cannot reach rank {}: {}", world.rank(),
                         member, reason);
  }
  return "";
}

std::string why_not_mpi(const World& world) {
  return world.ranks_are_threads()
             ? "transport mpi needs ranks that are processes; these are threads"
             : "";
}

std::string why_not_nccl(const World& world, const Group& group) {
  if (!cuda::has_nccl()) return "transport nccl: this program was built without NCCL";
  int here = 0;
  for (const int member : group.members) here += world.board().of(member) != nullptr;
  if (const int devices = world.devices_of(group); devices < here)
    return fmt::format(
        "transport nccl needs {} GPUs, found {}; cuda_ipc works with several ranks on one", here,
        devices);
  return "";
}

}  // namespace

std::unique_ptr<Link> connect(World& world, const Group& group, Transport transport) {
  if (const std::string reason = why_not(world, group, transport); !reason.empty())
    throw MachineError(reason);
  switch (transport) {
    case Transport::cuda_ipc:
      return cuda::connect_ipc(world, group);
    case Transport::nccl:
      return cuda::connect_nccl(world, group);
    case Transport::mpi:
      return with_faults(
          std::make_unique<MpiLink>(group, make_communicator(group), world.wait_policy()),
          world.faults());
    case Transport::shared_memory:
      break;
  }
  return with_faults(connect_shared_memory(world, group), world.faults());
}

std::string why_not(const World& world, const Group& group, Transport transport) {
  if (between_devices(transport) && !world.computes_on_gpu())
    return fmt::format("transport {} moves tensors of CUDA devices: needs --device cuda",
                       name(transport));
  switch (transport) {
    case Transport::shared_memory:
      return why_not_shared_memory(world, group);
    case Transport::mpi:
      return why_not_mpi(world);
    case Transport::cuda_ipc:
      return why_not_cuda_ipc(world, group);
    case Transport::nccl:
      return why_not_nccl(world, group);
  }
  return "";
}

}  // namespace machine
