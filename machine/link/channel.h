#pragma once
// Descriptors of messages between ranks of one host. The messages may be in any memory.
//
// A channel (one for each ordered pair) is a ring of 64 descriptors in the receiver's host memory.
// Each descriptor fills one cache line and has its own sequence word, so the receiver waits on the
// line in which the message arrives. The receiver counts the messages that it has taken in a
// separate line. It also offers places for future messages. If the sender wrote a message to such a
// place, the address in its descriptor is `delivered`.

#include <atomic>
#include <cstddef>
#include <functional>
#include <vector>

#include "machine/link/link.h"
#include "machine/world/control/wait.h"

namespace machine {

class World;

inline constexpr std::size_t inline_bytes = 32;
inline constexpr std::size_t eager_bytes = 8192;

struct alignas(64) Slot {
  std::atomic<std::uint32_t> sequence{0};  // the low 32 bits of the number of its message
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;  // in the sender's memory; or in_line, in_payload or delivered
  std::byte data[inline_bytes];
};
static_assert(sizeof(Slot) == 64);

// A place for a message; two per cache line.
struct alignas(32) Offer {
  std::atomic<std::uint64_t> number{0};  // of the message; written last
  std::uint64_t address = 0;             // in the receiver's memory
  std::uint64_t bytes = 0;
};

struct Channel {
  static constexpr std::uint64_t slots = 64, payloads = 8;
  static constexpr std::uint64_t in_line = ~0ull, in_payload = ~0ull - 1, delivered = ~0ull - 2;
  Slot ring[slots];
  Offer offers[slots];  // by the receiver; message k uses offers[k % slots]
  alignas(64) std::atomic<std::uint32_t> taken{0};  // last message taken, modulo 2^32
  std::atomic<std::uint32_t> sender_sleeps{0};      // on `taken`
  // Set while the receiver sleeps until a message arrives. Both ranks keep this line in their
  // caches. If the flag were in the slot's line, a sender would wait until that line has come from
  // the receiver's core.
  alignas(64) std::atomic<std::uint32_t> receiver_sleeps{0};
  alignas(64) std::byte payload[payloads][eager_bytes];
};

// A rank's ends of the channels of a group. `incoming` has group.size() channels in this rank's
// memory, the i-th from peer i. `outgoing[i]` leads to peer i and is in the peer's memory. `copies`
// has room for messages in this rank's memory that several peers read. Call `retire` once, when the
// link no longer uses `incoming` and `copies`; peers may still read them.
struct ChannelEnds {
  static constexpr std::size_t most_copies = 8;  // of eager_bytes
  Channel* incoming = nullptr;
  std::byte* copies = nullptr;
  std::vector<Channel*> outgoing;
  std::function<void()> retire;
};
// Creates the channels of the group. Collective over the group.
ChannelEnds make_channels(World& world, const Group& group);

// A link whose messages are announced through channels. The code path of a short message is in this
// header, to be inlined.
class ChannelLink : public Link {
 public:
  ~ChannelLink() override { ends_.retire(); }

  bool shares_cores() const override { return wait_.policy().oversubscribed; }

 protected:
  ChannelLink(Group group, ChannelEnds ends, WaitPolicy policy);

  std::uint64_t last_sent(int peer) const final { return outgoing_[peer].sent; }
  std::uint64_t last_taken(int peer) const { return outgoing_[peer].taken; }  // last seen
  std::uint64_t last_received(int peer) const { return received_[peer]; }
  Channel& to(int peer) { return *ends_.outgoing[peer]; }
  Channel& from(int peer) { return ends_.incoming[peer]; }
  std::byte* copy_block(std::size_t index) { return ends_.copies + index * eager_bytes; }

  // Waits until the ring has room for the next message. Returns its descriptor.
  Slot& next_slot(int peer, std::size_t bytes) {
    Outgoing& outgoing = outgoing_[peer];
    const std::uint64_t number = ++outgoing.sent;
    if (number > outgoing.taken + Channel::slots) wait_taken(peer, number - Channel::slots, bytes);
    Slot& slot = to(peer).ring[number % Channel::slots];
    // The line comes from the receiver's core while a payload is written.
    __builtin_prefetch(&slot, 1);
    slot.bytes = bytes;
    return slot;
  }
  // Announces the message in next_slot() to the receiver. Returns the message's number.
  std::uint64_t publish(int peer, Slot& slot) {
    announce(slot.sequence, static_cast<std::uint32_t>(outgoing_[peer].sent),
             to(peer).receiver_sleeps);
    return outgoing_[peer].sent;
  }
  void refresh_taken(int peer) {
    // The 32-bit counter is at most one ring behind the number of sent messages.
    const std::uint32_t low = to(peer).taken.load(std::memory_order_acquire);
    outgoing_[peer].taken +=
        static_cast<std::uint32_t>(low - static_cast<std::uint32_t>(outgoing_[peer].taken));
  }
  void wait_taken(int peer, std::uint64_t number, std::size_t bytes) {
    if (outgoing_[peer].taken >= number) return;
    Channel& channel = to(peer);
    wait_.until_reached(channel.taken, static_cast<std::uint32_t>(number), channel.sender_sleeps,
                        waiting(peer, number, bytes, "take"));
    refresh_taken(peer);
  }

  // Waits for the next message from peer. Returns its descriptor.
  const Slot& arrived(int peer, std::size_t bytes) {
    const std::uint64_t number = ++received_[peer];
    Channel& channel = from(peer);
    Slot& slot = channel.ring[number % Channel::slots];
    wait_.until_reached(slot.sequence, static_cast<std::uint32_t>(number), channel.receiver_sleeps,
                        waiting(peer, number, bytes, "send"));
    if (slot.bytes != bytes) sizes_disagree(peer, number, bytes, slot.bytes);
    return slot;
  }
  // Reports on the board that the device waits for the message.
  void queued(int peer, std::uint64_t number, std::size_t bytes) const {
    wait_.queued(waiting(peer, number, bytes, "send"));
  }
  void publish_taken(int peer) {
    Channel& channel = from(peer);
    announce(channel.taken, static_cast<std::uint32_t>(last_received(peer)), channel.sender_sleeps);
  }

  // Offers a place for message `number` from peer.
  void offer(int peer, std::uint64_t number, std::uint64_t address, std::size_t bytes) {
    Offer& offer = from(peer).offers[number % Channel::slots];
    offer.address = address;
    offer.bytes = bytes;
    offer.number.store(number, std::memory_order_release);
  }
  // Returns the peer's offer for the next message to it, or null.
  const Offer* offered(int peer, std::size_t bytes) {
    const std::uint64_t number = outgoing_[peer].sent + 1;
    const Offer& offer = to(peer).offers[number % Channel::slots];
    const bool fits =
        offer.number.load(std::memory_order_acquire) == number && offer.bytes == bytes;
    return fits ? &offer : nullptr;
  }
  // Returns this rank's offer for the last message that it received from peer.
  const Offer& own_offer(int peer) {
    return from(peer).offers[last_received(peer) % Channel::slots];
  }

 private:
  struct Outgoing {
    std::uint64_t sent = 0;
    std::uint64_t taken = 0;
  };
  // Wait::publish without its fence, which would wait until the line has come from the peer's core,
  // while this rank could already look for the peer's message: the smallest calls of two ranks are
  // 6 to 18 % shorter. A sleeper that the load misses sees the value in the kernel, which compares
  // it again, or at worst after a millisecond (Wait::sleep).
  static void announce(std::atomic<std::uint32_t>& word, std::uint32_t value,
                       std::atomic<std::uint32_t>& sleeping) {
    word.store(value, std::memory_order_release);
    if (sleeping.load(std::memory_order_relaxed) != 0) Wait::publish(word, value, sleeping);
  }
  Waiting waiting(int peer, std::uint64_t number, std::size_t bytes, const char* for_what) const {
    return {operation(), group().members[peer], number, bytes, for_what};
  }
  [[noreturn]] void sizes_disagree(int peer, std::uint64_t number, std::size_t expected,
                                   std::size_t sent) const;

  ChannelEnds ends_;
  Wait wait_;
  std::vector<Outgoing> outgoing_;
  std::vector<std::uint64_t> received_;
};

}  // namespace machine
