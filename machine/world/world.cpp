#include "machine/world/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "machine/base/error.h"
#include "machine/world/control/post.h"
#include "machine/world/control/tree.h"
#include "machine/world/control/wait.h"

namespace machine {

World::World() = default;
World::~World() = default;

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
  device().set_threads(rank() < ranks ? bind(index, active) : 1);
  host_device_->set_threads(device().threads());
}

void World::set_places(std::vector<Place> places) { places_ = std::move(places); }

const Place* World::place() const {
  std::size_t index = 0;
  for (int other = 0; other < rank(); ++other) index += host(other) == host(rank());
  return index < places_.size() ? &places_[index] : nullptr;
}

std::vector<std::string> World::gpus_of_host(int ranks) const {
  std::vector<std::string> gpus;
  for (int rank = 0; rank < ranks; ++rank)
    gpus.push_back(places_[static_cast<std::size_t>(rank)].bus_id);
  return gpus;
}

bool World::oversubscribed() const {
  int active = 0;
  const int ranks = active_ranks_ == 0 ? size() : active_ranks_;
  for (int other = 0; other < ranks; ++other) active += host(other) == host(rank());
  return active > cores_of_host();
}

WaitPolicy World::wait_policy() const {
  return {board_.get(), timeout_s_, oversubscribed(), false, before_sleep_};
}

std::vector<std::string> World::all_gather(const Group& group, std::string_view mine) {
  return control::all_gather(*post_, group, mine);
}

std::string World::broadcast(const Group& group, int root, std::string_view mine) {
  return control::broadcast(*post_, group, root, mine, Operation::broadcast);
}

void World::send(int to, std::string_view text) { post_->send(to, text, Operation::none); }

std::string World::receive(int from) { return post_->receive(from, Operation::none); }

void World::barrier(const Group& group) {
  control::wait_for_all(*post_, group);
  control::release_all(*post_, group);
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
    throw MachineError(fmt::format("cannot allocate {} bytes on the host for links of group {}",
                                   bytes, group.name));
  construct(static_cast<std::byte*>(block));
  Shared result;
  result.retire = [this, memory = shared.memory, block, bytes] {
    after_barrier([memory, block, bytes] { memory->free(block, bytes); });
  };
  std::vector<std::uint64_t> offsets;
  try {
    offsets = all_gather(group, shared.offset(block));
  } catch (const MachineError&) {
    result.retire();
    throw;
  }
  for (std::size_t peer = 0; peer < offsets.size(); ++peer)
    result.blocks.push_back(shared.at(group.members[peer], offsets[peer]));
  return result;
}

void World::set_host_device(std::unique_ptr<Device> device) {
  host_device_ = std::move(device);
  host_device_->set_faults(&faults_);
}

void World::use_device(std::unique_ptr<Device> device) {
  kept_.clear();
  device_ = std::move(device);
  device_->set_faults(&faults_);
  device_->count_waits_in(&board_->mine().on_device);
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

}  // namespace machine
