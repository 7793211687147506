#include "machine/link/shared_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "machine/device/error.h"
#include "machine/device/host/streaming.h"

namespace machine {

SharedMemoryLink::SharedMemoryLink(Group group, Wiring wiring, WaitPolicy policy)
    : Link(std::move(group)),
      wiring_(std::move(wiring)),
      wait_(policy),
      outgoing_(static_cast<std::size_t>(size())),
      received_(static_cast<std::size_t>(size())) {}

SharedMemoryLink::~SharedMemoryLink() {
  try {
    flush();
  } catch (const MachineError&) {
    // A peer is gone; the run is ending with that peer's name already.
  }
  for (int peer = 0; peer < size(); ++peer) free_staged(peer);
  wiring_.retire();
}

Waiting SharedMemoryLink::waiting(int peer, std::uint64_t number, std::size_t bytes,
                                  const char* for_what) const {
  return {operation(), group().members[static_cast<std::size_t>(peer)], number, bytes, for_what};
}

void SharedMemoryLink::refresh_taken(int peer) {
  // The counter is 32 bits wide and never more than the ring behind.
  const std::uint32_t low = to(peer).taken.load(std::memory_order_acquire);
  out(peer).taken += static_cast<std::uint32_t>(low - static_cast<std::uint32_t>(out(peer).taken));
}

void SharedMemoryLink::wait_taken(int peer, std::uint64_t number, std::size_t bytes) {
  if (out(peer).taken >= number) return;
  Channel& channel = to(peer);
  wait_.until_reached(channel.taken, static_cast<std::uint32_t>(number), channel.sleeping,
                      waiting(peer, number, bytes, "take"));
  refresh_taken(peer);
}

void SharedMemoryLink::free_staged(int peer) {
  for (const auto& staged : out(peer).staged) wiring_.staging->free(staged.data, staged.bytes);
  out(peer).staged.clear();
}

Slot& SharedMemoryLink::next_slot(int peer, std::size_t bytes) {
  Outgoing& outgoing = out(peer);
  const std::uint64_t number = ++outgoing.sent;
  if (number > outgoing.taken + Channel::slots) wait_taken(peer, number - Channel::slots, bytes);
  Slot& slot = to(peer).ring[number % Channel::slots];
  slot.bytes = bytes;
  return slot;
}

std::uint64_t SharedMemoryLink::do_send(int peer, const void* data, std::size_t bytes) {
  Slot& slot = next_slot(peer, bytes);
  Outgoing& outgoing = out(peer);
  const std::uint64_t number = outgoing.sent;
  Channel& channel = to(peer);
  if (bytes <= inline_bytes) {
    if (bytes > 0) std::memcpy(slot.data, data, bytes);
    slot.address = Channel::in_line;
  } else {
    if (bytes <= eager_bytes && number > outgoing.taken + Channel::payloads) refresh_taken(peer);
    if (bytes <= eager_bytes && number <= outgoing.taken + Channel::payloads) {
      std::memcpy(channel.payload[number % Channel::payloads], data, bytes);
      slot.address = Channel::in_payload;
    } else {
      if (!wiring_.own.contains(data, bytes)) {
        void* copy = wiring_.staging->allocate(bytes);
        if (!copy)
          throw MachineError(fmt::format("no memory to stage a message of {} bytes", bytes));
        std::memcpy(copy, data, bytes);
        outgoing.staged.push_back({number, copy, bytes});
        data = copy;
      }
      slot.address =
          static_cast<std::uint64_t>(static_cast<const std::byte*>(data) - wiring_.own.base);
      outgoing.by_address = number;
    }
  }
  Wait::publish(slot.sequence, static_cast<std::uint32_t>(number), slot.sleeping);
  return number;
}

void SharedMemoryLink::do_wait_sent(int peer, std::uint64_t number) {
  // What was copied on sending needs no waiting; by_address may be later than number, never the
  // other way round for a message that matters.
  wait_taken(peer, std::min(number, out(peer).by_address), 0);
  if (!out(peer).staged.empty() && out(peer).taken >= out(peer).staged.back().number)
    free_staged(peer);
}

void SharedMemoryLink::do_post(int peer, int ahead, void* into, std::size_t bytes) {
  if (!wiring_.own.contains(into, bytes) || ahead > static_cast<int>(Channel::slots)) return;
  const std::uint64_t number =
      received_[static_cast<std::size_t>(peer)] + static_cast<std::uint64_t>(ahead);
  Offer& offer = from(peer).offers[number % Channel::slots];
  offer.address = static_cast<std::uint64_t>(static_cast<std::byte*>(into) - wiring_.own.base);
  offer.bytes = bytes;
  offer.number.store(number, std::memory_order_release);
}

void* SharedMemoryLink::do_posted(int peer, std::size_t bytes) {
  const std::uint64_t number = out(peer).sent + 1;
  const Offer& offer = to(peer).offers[number % Channel::slots];
  if (offer.number.load(std::memory_order_acquire) != number || offer.bytes != bytes)
    return nullptr;
  return wiring_.peers[static_cast<std::size_t>(peer)].base + offer.address;
}

std::uint64_t SharedMemoryLink::do_deliver(int peer, std::size_t bytes) {
  Slot& slot = next_slot(peer, bytes);
  slot.address = Channel::delivered;
  Wait::publish(slot.sequence, static_cast<std::uint32_t>(out(peer).sent), slot.sleeping);
  return out(peer).sent;
}

const Slot& SharedMemoryLink::arrived(int peer, std::size_t bytes) {
  const std::uint64_t number = ++received_[static_cast<std::size_t>(peer)];
  Slot& slot = from(peer).ring[number % Channel::slots];
  wait_.until_equal(slot.sequence, static_cast<std::uint32_t>(number), slot.sleeping,
                    waiting(peer, number, bytes, "send"));
  if (slot.bytes != bytes)
    throw std::logic_error(fmt::format(
        "{} in group {}: rank {} expects {} bytes in message {} from rank {}, which sent {}",
        name(operation()), group().name, group().members[static_cast<std::size_t>(rank())], bytes,
        number, group().members[static_cast<std::size_t>(peer)], slot.bytes));
  return slot;
}

const void* SharedMemoryLink::do_receive_in_place(int peer, std::size_t bytes) {
  const Slot& slot = arrived(peer, bytes);
  const Channel& channel = from(peer);
  const std::uint64_t number = received_[static_cast<std::size_t>(peer)];
  if (slot.address == Channel::delivered)
    return wiring_.own.base + channel.offers[number % Channel::slots].address;
  if (slot.address == Channel::in_line) return slot.data;
  if (slot.address == Channel::in_payload) return channel.payload[number % Channel::payloads];
  return wiring_.peers[static_cast<std::size_t>(peer)].base + slot.address;
}

void SharedMemoryLink::do_release(int peer) {
  Channel& channel = from(peer);
  Wait::publish(channel.taken,
                static_cast<std::uint32_t>(received_[static_cast<std::size_t>(peer)]),
                channel.sleeping);
}

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
