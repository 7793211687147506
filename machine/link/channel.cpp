#include "machine/link/channel.h"

#include <fmt/format.h>

#include <stdexcept>

namespace machine {

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
