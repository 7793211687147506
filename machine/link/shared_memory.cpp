#include "machine/link/shared_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "machine/base/error.h"
#include "machine/device/host/stream_copy.h"

namespace machine {

SharedMemoryLink::SharedMemoryLink(Group group, Wiring wiring, WaitPolicy policy)
    : ChannelLink(std::move(group), std::move(wiring.ends), policy),
      own_(wiring.own),
      bases_(std::move(wiring.bases)),
      staging_(wiring.staging),
      lent_(static_cast<std::size_t>(size())) {}

SharedMemoryLink::~SharedMemoryLink() {
  try {
    flush();
  } catch (const MachineError&) {
    // A peer is gone; the run is ending with that peer's name already.
  }
  for (int peer = 0; peer < size(); ++peer) free_staged(peer);
}

void SharedMemoryLink::free_staged(int peer) {
  for (const auto& staged : lent(peer).staged) staging_->free(staged.data, staged.bytes);
  lent(peer).staged.clear();
}

std::uint64_t SharedMemoryLink::do_send(int peer, const void* data, std::size_t bytes) {
  Slot& slot = next_slot(peer, bytes);
  if (bytes <= inline_bytes) {
    if (bytes > 0) std::memcpy(slot.data, data, bytes);
    slot.address = Channel::in_line;
    return publish(peer, slot);
  }
  const std::uint64_t number = last_sent(peer);
  if (bytes <= eager_bytes && number > last_taken(peer) + Channel::payloads) refresh_taken(peer);
  if (bytes <= eager_bytes && number <= last_taken(peer) + Channel::payloads) {
    std::memcpy(to(peer).payload[number % Channel::payloads], data, bytes);
    slot.address = Channel::in_payload;
    return publish(peer, slot);
  }
  if (!own_.contains(data, bytes)) {
    void* copy = staging_->allocate(bytes);
    if (!copy)
      throw MachineError(fmt::format("no memory to stage a message of {} bytes", bytes),
                         Failure::Kind::out_of_memory);
    std::memcpy(copy, data, bytes);
    lent(peer).staged.push_back({number, copy, bytes});
    data = copy;
  }
  slot.address = static_cast<std::uint64_t>(static_cast<const std::byte*>(data) - own_.base);
  lent(peer).last = number;
  return publish(peer, slot);
}

void SharedMemoryLink::do_wait_sent(int peer, std::uint64_t number) {
  // What was copied on sending needs no waiting; lent.last may be later than number, never the
  // other way round for a message that matters.
  Lent& to_peer = lent(peer);
  wait_taken(peer, std::min(number, to_peer.last), 0);
  if (!to_peer.staged.empty() && last_taken(peer) >= to_peer.staged.back().number)
    free_staged(peer);
}

void SharedMemoryLink::do_post(int peer, int ahead, void* into, std::size_t bytes) {
  if (!own_.contains(into, bytes) || ahead > static_cast<int>(Channel::slots)) return;
  offer(peer, last_received(peer) + static_cast<std::uint64_t>(ahead),
        static_cast<std::uint64_t>(static_cast<std::byte*>(into) - own_.base), bytes);
}

void* SharedMemoryLink::do_posted(int peer, std::size_t bytes) {
  const Offer* offer = offered(peer, bytes);
  return offer ? bases_[static_cast<std::size_t>(peer)] + offer->address : nullptr;
}

std::uint64_t SharedMemoryLink::do_deliver(int peer, std::size_t bytes) {
  Slot& slot = next_slot(peer, bytes);
  slot.address = Channel::delivered;
  return publish(peer, slot);
}

const void* SharedMemoryLink::do_receive_in_place(int peer, std::size_t bytes) {
  const Slot& slot = arrived(peer, bytes);
  if (slot.address == Channel::delivered) return own_.base + own_offer(peer).address;
  if (slot.address == Channel::in_line) return slot.data;
  if (slot.address == Channel::in_payload)
    return from(peer).payload[last_received(peer) % Channel::payloads];
  return bases_[static_cast<std::size_t>(peer)] + slot.address;
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
