#include "machine/world/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>

#include "machine/base/error.h"
#include "machine/link/cuda_links.h"
#include "machine/link/faulty_link.h"

namespace machine {

bool World::on_one_host(const Group& group) const {
  return std::all_of(group.members.begin(), group.members.end(),
                     [&](int member) { return host(member) == host(group.members.front()); });
}

void World::set_active_ranks(int ranks) {
  active_ranks_ = ranks;
  int active = 0, index = 0;
  for (int other = 0; other < ranks; ++other) {
    if (host(other) != host(rank())) continue;
    if (other < rank()) ++index;
    ++active;
  }
  if (rank() < ranks) bind(index, active);
  device().set_threads(std::max(1, cores_of_host() / std::max(1, active)));
  host_device_->set_threads(device().threads());
}

WaitPolicy World::wait_policy() const {
  int active = 0;
  const int ranks = active_ranks_ == 0 ? size() : active_ranks_;
  for (int other = 0; other < ranks; ++other) active += host(other) == host(rank());
  return {board_.get(), timeout_s_, active > cores_of_host(), false};
}

// The control plane goes through rank 0 of the group: sizes first, then texts. Few bytes, seldom.
std::vector<std::string> World::all_gather(const Group& group, std::string_view mine) {
  control_->count_as({Operation::all_gather, Dtype::float32});
  const auto send_text = [&](int peer, std::string_view text) {
    const std::uint64_t bytes = text.size();
    control_->send(peer, &bytes, sizeof bytes);
    control_->send(peer, text.data(), text.size());
  };
  const auto receive_text = [&](int peer) {
    std::uint64_t bytes = 0;
    control_->receive(peer, &bytes, sizeof bytes);
    std::string text(bytes, '\0');
    control_->receive(peer, text.data(), bytes);
    return text;
  };
  const int size = group.size();
  const int root = group.members.front();
  std::vector<std::string> all(static_cast<std::size_t>(size));
  if (group.index == 0) {
    all[0] = mine;
    for (int i = 1; i < size; ++i)
      all[static_cast<std::size_t>(i)] = receive_text(group.members[static_cast<std::size_t>(i)]);
    for (int i = 1; i < size; ++i)
      for (const std::string& text : all)
        send_text(group.members[static_cast<std::size_t>(i)], text);
    for (int i = 1; i < size; ++i) {
      // all is local: peers must have read it before it goes.
      const int peer = group.members[static_cast<std::size_t>(i)];
      control_->wait_sent(peer, ~0ull);
    }
  } else {
    send_text(root, mine);
    for (std::string& text : all) text = receive_text(root);
    control_->wait_sent(root, ~0ull);
  }
  return all;
}

std::string World::broadcast(const Group& group, int root, std::string_view mine) {
  return all_gather(
      group, group.index == root ? mine : std::string_view{})[static_cast<std::size_t>(root)];
}

void World::barrier(const Group& group) {
  control_->count_as({Operation::barrier, Dtype::float32});
  const int root = group.members.front();
  if (group.index == 0) {
    for (int i = 1; i < group.size(); ++i)
      control_->receive(group.members[static_cast<std::size_t>(i)], nullptr, 0);
    for (int i = 1; i < group.size(); ++i)
      control_->send(group.members[static_cast<std::size_t>(i)], nullptr, 0);
  } else {
    control_->send(root, nullptr, 0);
    control_->receive(root, nullptr, 0);
  }
  if (group.size() == size()) {
    for (const auto& give_back : retired_) give_back();
    retired_.clear();
  }
}

World::Shared World::share(const Group& group, std::size_t bytes,
                           const std::function<void(std::byte*)>& construct) {
  const SharedMemory shared = shared_memory();
  void* block = shared.memory->allocate(bytes);
  if (!block)
    throw MachineError(
        fmt::format("no memory for {} bytes of links of group {}", bytes, group.name));
  construct(static_cast<std::byte*>(block));
  Shared result;
  result.retire = [this, memory = shared.memory, block, bytes] {
    after_barrier([memory, block, bytes] { memory->free(block, bytes); });
  };
  auto offset = static_cast<std::uint64_t>(static_cast<std::byte*>(block) - shared.own.base);
  std::vector<std::string> offsets;
  try {
    offsets = all_gather(group, {reinterpret_cast<const char*>(&offset), sizeof offset});
  } catch (const MachineError&) {
    result.retire();
    throw;
  }
  for (int peer = 0; peer < group.size(); ++peer) {
    std::memcpy(&offset, offsets[static_cast<std::size_t>(peer)].data(), sizeof offset);
    const int member = group.members[static_cast<std::size_t>(peer)];
    result.blocks.push_back(shared.bases[static_cast<std::size_t>(member)] + offset);
  }
  return result;
}

ChannelEnds World::make_channels(const Group& group) {
  const auto size = static_cast<std::size_t>(group.size());
  Shared shared = share(group, sizeof(Channel) * size, [size](std::byte* block) {
    std::uninitialized_default_construct_n(reinterpret_cast<Channel*>(block), size);
  });
  ChannelEnds ends;
  ends.incoming = reinterpret_cast<Channel*>(shared.blocks[static_cast<std::size_t>(group.index)]);
  for (std::byte* block : shared.blocks)
    ends.outgoing.push_back(reinterpret_cast<Channel*>(block) + group.index);
  ends.retire = std::move(shared.retire);
  return ends;
}

std::unique_ptr<Link> World::connect_shared_memory(const Group& group) {
  const SharedMemory shared = shared_memory();
  SharedMemoryLink::Wiring wiring;
  wiring.own = shared.own;
  wiring.staging = shared.memory;
  for (const int member : group.members)
    wiring.bases.push_back(shared.bases[static_cast<std::size_t>(member)]);
  wiring.ends = make_channels(group);
  return std::make_unique<SharedMemoryLink>(group, std::move(wiring), wait_policy());
}

void World::use_device(std::unique_ptr<Device> device) {
  device_ = std::move(device);
  board_->mine().device.store(device_->identity());
}

int World::devices_of(const Group& group) const {
  std::set<std::uint64_t> devices;
  for (const int member : group.members)
    if (const RankStatus* status = board_->of(member)) devices.insert(status->device.load());
  return static_cast<int>(devices.size());
}

int World::sharers_of_device(const Group& group) const {
  const std::uint64_t mine = board_->of(rank())->device.load();
  return static_cast<int>(std::ranges::count_if(group.members, [&](int member) {
    const RankStatus* status = board_->of(member);
    return status && status->device.load() == mine;
  }));
}

std::unique_ptr<Link> World::connect(const Group& group, Transport transport) {
  if (const std::string reason = why_not(group, transport); !reason.empty())
    throw MachineError(reason);
  if (transport == Transport::cuda_ipc) return cuda::connect_ipc(*this, group);
  if (transport == Transport::nccl) return cuda::connect_nccl(*this, group);
  return with_faults(connect_host(group, transport));
}

std::string World::why_not(const Group& group, Transport transport) const {
  if (!between_devices(transport)) return why_not_host(group, transport);
  if (!computes_on_gpu())
    return fmt::format("transport {} moves tensors of CUDA devices: needs --device cuda",
                       name(transport));
  int here = 0;
  for (const int member : group.members) {
    const RankStatus* status = board_->of(member);
    here += status != nullptr;
    if (transport == Transport::nccl) continue;
    if (!status)
      return fmt::format(
          "transport cuda_ipc needs ranks of one host; rank {} is on {}, rank {} on {}", rank(),
          host(rank()), member, host(member));
    if (std::string reason = cuda::why_not_peers(device_->identity(), status->device.load());
        !reason.empty())
      return fmt::format("transport cuda_ipc: rank {} cannot reach rank {}: {}", rank(), member,
                         reason);
  }
  if (transport == Transport::cuda_ipc) return "";
  if (!cuda::has_nccl()) return "transport nccl: this program was built without NCCL";
  if (const int devices = devices_of(group); devices < here)
    return fmt::format(
        "transport nccl needs {} GPUs, found {}; cuda_ipc works with several ranks on one", here,
        devices);
  return "";
}

}  // namespace machine
