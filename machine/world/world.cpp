#include "machine/world/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "machine/device/error.h"

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

std::unique_ptr<Link> World::connect_shared_memory(const Group& group, OwnMemory own,
                                                   HostMemory& memory,
                                                   const std::vector<std::byte*>& bases) {
  const std::size_t bytes = sizeof(Channel) * static_cast<std::size_t>(group.size());
  void* block = memory.allocate(bytes);
  if (!block)
    throw MachineError(
        fmt::format("no memory for the {} channels of group {}", group.size(), group.name));
  SharedMemoryLink::Wiring wiring;
  wiring.own = own;
  wiring.incoming = static_cast<Channel*>(block);
  std::uninitialized_default_construct_n(wiring.incoming, group.size());
  wiring.staging = &memory;
  wiring.retire = [this, &memory, block, bytes] {
    retired_.emplace_back([&memory, block, bytes] { memory.free(block, bytes); });
  };

  std::uint64_t offset = static_cast<std::uint64_t>(static_cast<std::byte*>(block) - own.base);
  std::vector<std::string> offsets;
  try {
    offsets = all_gather(group, {reinterpret_cast<const char*>(&offset), sizeof offset});
  } catch (const MachineError&) {
    wiring.retire();
    throw;
  }
  for (int peer = 0; peer < group.size(); ++peer) {
    std::memcpy(&offset, offsets[static_cast<std::size_t>(peer)].data(), sizeof offset);
    std::byte* base =
        bases[static_cast<std::size_t>(group.members[static_cast<std::size_t>(peer)])];
    wiring.peers.push_back({base, reinterpret_cast<Channel*>(base + offset) + group.index});
  }
  return std::make_unique<SharedMemoryLink>(group, std::move(wiring), wait_policy());
}

}  // namespace machine
