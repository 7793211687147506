#include "machine/link/shared_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "machine/base/error.h"
#include "machine/device/host/fetch.h"
#include "machine/device/host/stream_copy.h"

namespace machine {

SharedMemoryLink::SharedMemoryLink(World& world, const Group& group)
    : ChannelLink(group, make_channels(world, group), world.wait_policy()),
      shared_(world.shared_memory()),
      lent_(size()) {
  for (std::size_t i = 0; i < ChannelEnds::most_copies; ++i)
    copies_.push_back(
        {copy_block(i), std::vector<std::uint64_t>(static_cast<std::size_t>(size()))});
}

SharedMemoryLink::~SharedMemoryLink() {
  try {
    flush();
  } catch (const MachineError&) {
    // A peer is lost. The run already ends with that failure.
  }
  for (int peer = 0; peer < size(); ++peer) free_staged(peer);
}

void SharedMemoryLink::free_staged(int peer) {
  for (const auto& staged : lent_[peer].staged) shared_.memory->free(staged.data, staged.bytes);
  lent_[peer].staged.clear();
}

std::uint64_t SharedMemoryLink::do_send(int peer, const void* data, std::size_t bytes) {
  Slot& slot = next_slot(peer, bytes);
  if (bytes <= inline_bytes) {
    if (bytes > 0) std::memcpy(slot.data, data, bytes);
    slot.address = Channel::in_line;
    return publish(peer, slot);
  }
  return send_longer(peer, slot, data, bytes);
}

std::uint64_t SharedMemoryLink::send_longer(int peer, Slot& slot, const void* data,
                                            std::size_t bytes) {
  const std::uint64_t number = last_sent(peer);
  if (bytes <= eager_bytes && number > last_taken(peer) + Channel::payloads) refresh_taken(peer);
  if (bytes <= eager_bytes && number <= last_taken(peer) + Channel::payloads) {
    std::byte* const payload = to(peer).payload[number % Channel::payloads];
    host::fetch_to_write(payload, bytes);
    std::memcpy(payload, data, bytes);
    slot.address = Channel::in_payload;
    publish(peer, slot);
    host::fetch_to_write(to(peer).payload[(number + 1) % Channel::payloads], bytes);
    return number;
  }
  return send_in_place(peer, slot, data, bytes);
}

std::uint64_t SharedMemoryLink::send_in_place(int peer, Slot& slot, const void* data,
                                              std::size_t bytes) {
  const std::uint64_t number = last_sent(peer);
  if (!readable_by_peers(data, bytes)) {
    void* copy = shared_.memory->allocate(bytes);
    if (!copy)
      throw MachineError(
          fmt::format("cannot allocate {} bytes on the host to stage a message", bytes),
          Failure::Kind::out_of_memory);
    std::memcpy(copy, data, bytes);
    lent_[peer].staged.push_back({number, copy, bytes});
    data = copy;
  }
  slot.address = shared_.offset(data);
  lent_[peer].last = number;
  return publish(peer, slot);
}

// A copy costs a core's time and, with eight payload blocks for each peer, its cache. It saves the
// sender a wait only if the receiver is late. A receiver that takes turns with the sender has to
// run anyway before the sender gets its message. 2 KiB take as long either way; fewer bytes take
// longer by address.
std::uint64_t SharedMemoryLink::do_lend(int peer, const void* data, std::size_t bytes) {
  constexpr std::size_t worth_a_wait = 2048;
  if (!shares_cores() || bytes <= worth_a_wait) return do_send(peer, data, bytes);
  return send_in_place(peer, next_slot(peer, bytes), data, bytes);
}

SharedMemoryLink::Copy* SharedMemoryLink::free_copy() {
  Copy& copy = copies_[next_copy_];
  for (int peer = 0; peer < size(); ++peer) {
    const std::uint64_t number = copy.numbers[static_cast<std::size_t>(peer)];
    if (last_taken(peer) < number) refresh_taken(peer);
    if (last_taken(peer) < number) return nullptr;
  }
  next_copy_ = (next_copy_ + 1) % copies_.size();
  return &copy;
}

// One copy instead of one for each peer: the sender writes fewer lines, and of the receivers that
// share a cache only the first fetches them.
void SharedMemoryLink::do_send_to_all(std::span<const int> peers, const void* data,
                                      std::size_t bytes, std::span<std::uint64_t> numbers) {
  Copy* const copy = bytes > inline_bytes && bytes <= eager_bytes ? free_copy() : nullptr;
  if (!copy) return Link::do_send_to_all(peers, data, bytes, numbers);
  host::fetch_to_write(copy->data, bytes);
  std::memcpy(copy->data, data, bytes);
  for (std::size_t i = 0; i < peers.size(); ++i) {
    Slot& slot = next_slot(peers[i], bytes);
    slot.address = shared_.offset(copy->data);
    numbers[i] = copy->numbers[static_cast<std::size_t>(peers[i])] = publish(peers[i], slot);
  }
}

void SharedMemoryLink::do_wait_sent(int peer, std::uint64_t number) {
  // A message that was copied on sending needs no wait. If the peer reads message `number` in this
  // rank's memory, lent.last is `number` or later.
  Lent& to_peer = lent_[peer];
  wait_taken(peer, std::min(number, to_peer.last), 0);
  if (!to_peer.staged.empty() && last_taken(peer) >= to_peer.staged.back().number)
    free_staged(peer);
}

void SharedMemoryLink::do_post(int peer, int ahead, void* into, std::size_t bytes) {
  if (!readable_by_peers(into, bytes) || ahead > static_cast<int>(Channel::slots)) return;
  offer(peer, last_received(peer) + ahead, shared_.offset(into), bytes);
}

void* SharedMemoryLink::do_posted(int peer, std::size_t bytes) {
  const Offer* offer = offered(peer, bytes);
  return offer ? at(peer, offer->address) : nullptr;
}

std::uint64_t SharedMemoryLink::do_deliver(int peer, std::size_t bytes) {
  Slot& slot = next_slot(peer, bytes);
  slot.address = Channel::delivered;
  return publish(peer, slot);
}

const void* SharedMemoryLink::do_receive_in_place(int peer, std::size_t bytes) {
  const Slot& slot = arrived(peer, bytes);
  if (slot.address == Channel::delivered) return at(rank(), own_offer(peer).address);
  if (slot.address == Channel::in_line) return slot.data;
  if (slot.address == Channel::in_payload)
    return from(peer).payload[last_received(peer) % Channel::payloads];
  return at(peer, slot.address);
}

void SharedMemoryLink::do_release(int peer) { publish_taken(peer); }

void SharedMemoryLink::do_receive(int peer, void* into, std::size_t bytes, Store store) {
  const void* data = do_receive_in_place(peer, bytes);
  if (store == Store::streaming) {
    if (data != into) host::stream_copy(into, data, bytes);
  } else if (bytes > 0 && data != into) {
    std::memcpy(into, data, bytes);
  }
  do_release(peer);
}

}  // namespace machine
