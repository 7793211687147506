#include "machine/link/channel.h"

#include <fmt/format.h>

#include <memory>
#include <stdexcept>

#include "machine/world/world.h"

namespace machine {

ChannelEnds make_channels(World& world, const Group& group) {
  const auto size = static_cast<std::size_t>(group.size());
  World::Shared shared = world.share(group, sizeof(Channel) * size, [size](std::byte* block) {
    std::uninitialized_default_construct_n(reinterpret_cast<Channel*>(block), size);
  });
  ChannelEnds ends;
  ends.incoming = reinterpret_cast<Channel*>(shared.blocks[static_cast<std::size_t>(group.index)]);
  for (std::byte* block : shared.blocks)
    ends.outgoing.push_back(reinterpret_cast<Channel*>(block) + group.index);
  ends.retire = std::move(shared.retire);
  return ends;
}

ChannelLink::ChannelLink(Group group, ChannelEnds ends, WaitPolicy policy)
    : Link(std::move(group)),
      ends_(std::move(ends)),
      wait_(policy),
      outgoing_(static_cast<std::size_t>(size())),
      received_(static_cast<std::size_t>(size())) {}

void ChannelLink::sizes_disagree(int peer, std::uint64_t number, std::size_t expected,
                                 std::size_t sent) const {
  throw std::logic_error(fmt::format(
      "{} in group {}: rank {} expects {} bytes in message {} from rank {}, which sent {}",
      name(operation()), group().name, group().members[static_cast<std::size_t>(rank())], expected,
      number, group().members[static_cast<std::size_t>(peer)], sent));
}

}  // namespace machine
