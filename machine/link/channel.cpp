#include "machine/link/channel.h"

#include <fmt/format.h>

#include <memory>
#include <stdexcept>

#include "machine/world/world.h"

namespace machine {

ChannelEnds make_channels(World& world, const Group& group) {
  const std::size_t size = group.size();
  const std::size_t channels_bytes = sizeof(Channel) * size;
  World::Shared shared = world.share(
      group, channels_bytes + ChannelEnds::most_copies * eager_bytes, [size](std::byte* block) {
        std::uninitialized_default_construct_n(reinterpret_cast<Channel*>(block), size);
      });
  ChannelEnds ends;
  ends.incoming = reinterpret_cast<Channel*>(shared.blocks[group.index]);
  ends.copies = shared.blocks[group.index] + channels_bytes;
  for (std::byte* block : shared.blocks)
    ends.outgoing.push_back(reinterpret_cast<Channel*>(block) + group.index);
  ends.retire = std::move(shared.retire);
  return ends;
}

ChannelLink::ChannelLink(Group group, ChannelEnds ends, WaitPolicy policy)
    : Link(std::move(group)),
      ends_(std::move(ends)),
      wait_(policy),
      outgoing_(size()),
      received_(size()) {}

void ChannelLink::sizes_disagree(int peer, std::uint64_t number, std::size_t expected,
                                 std::size_t sent) const {
  throw std::logic_error(fmt::format(
      "{} in group {}: rank {} expects {} bytes in message {} from rank {}, which sent {}",
      name(operation()), group().name, group().members[rank()], expected, number,
      group().members[peer], sent));
}

}  // namespace machine
