#include "machine/link/streamed.h"

#include <algorithm>

#include "machine/base/error.h"

namespace machine {

StreamedLink::StreamedLink(Group group, ChannelEnds ends, std::unique_ptr<Neighbours> neighbours,
                           WaitPolicy policy)
    : ChannelLink(std::move(group), std::move(ends), policy),
      neighbours_(std::move(neighbours)),
      awaited_(size()) {}

StreamedLink::~StreamedLink() {
  try {
    flush();
    neighbours_->stream().synchronize();  // queued work still reads peers' memory
  } catch (const MachineError&) {
    // A peer or the device is lost. The run already ends with that failure.
  }
}

// Records the mark before it publishes the descriptor, so the peer never waits for an older mark.
std::uint64_t StreamedLink::do_send(int peer, const void* data, std::size_t bytes) {
  const std::uint64_t address =
      bytes > 0 ? neighbours_->address(data, bytes) : std::uint64_t{Channel::in_line};
  Slot& slot = next_slot(peer, bytes);
  slot.address = address;
  neighbours_->record(Mark::sent, peer, last_sent(peer));
  return publish(peer, slot);
}

void StreamedLink::do_wait_sent(int peer, std::uint64_t number) {
  number = std::min(number, last_sent(peer));
  std::uint64_t& awaited = awaited_[peer];
  if (awaited >= number) return;
  wait_taken(peer, number, 0);
  neighbours_->wait(Mark::taken, peer, number);
  awaited = number;
}

void StreamedLink::do_post(int peer, int ahead, void* into, std::size_t bytes) {
  if (bytes == 0 || ahead > static_cast<int>(Channel::slots)) return;
  const std::uint64_t number = last_received(peer) + static_cast<std::uint64_t>(ahead);
  const std::uint64_t address = neighbours_->address(into, bytes);
  neighbours_->record(Mark::posted, peer, number);
  offer(peer, number, address, bytes);
}

void* StreamedLink::do_posted(int peer, std::size_t bytes) {
  const Offer* offer = offered(peer, bytes);
  if (!offer) return nullptr;
  neighbours_->wait(Mark::posted, peer, last_sent(peer) + 1);
  return neighbours_->at(peer, offer->address);
}

std::uint64_t StreamedLink::do_deliver(int peer, std::size_t bytes) {
  Slot& slot = next_slot(peer, bytes);
  slot.address = Channel::delivered;
  neighbours_->record(Mark::sent, peer, last_sent(peer));
  return publish(peer, slot);
}

const void* StreamedLink::do_receive_in_place(int peer, std::size_t bytes) {
  const Slot& slot = arrived(peer, bytes);
  neighbours_->wait(Mark::sent, peer, last_received(peer));
  queued(peer, last_received(peer), bytes);
  if (slot.address == Channel::in_line) return nullptr;  // an empty message
  if (slot.address == Channel::delivered) return neighbours_->at(rank(), own_offer(peer).address);
  return neighbours_->at(peer, slot.address);
}

void StreamedLink::do_release(int peer) {
  neighbours_->record(Mark::taken, peer, last_received(peer));
  publish_taken(peer);
}

void StreamedLink::do_receive(int peer, void* into, std::size_t bytes, Store) {
  const void* data = do_receive_in_place(peer, bytes);
  if (bytes > 0 && data != into) neighbours_->stream().copy(into, data, bytes);
  do_release(peer);
}

}  // namespace machine
