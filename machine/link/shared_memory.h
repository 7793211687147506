#pragma once
// The shared_memory transport: a receiver reads the sender's memory in place, or, for small
// messages, from the channel itself.
//
// A channel (one for each ordered pair) lies in the receiver's memory: a ring of 64 one-line
// descriptors, each with its own sequence word, so that the receiver waits on the line that the
// message arrives in; up to inline_bytes travel in that line, up to eager_bytes in one of 8 payload
// blocks, more by address. The receiver counts what it has taken in a line of its own,
// and offers places for messages to come; a message that its sender wrote there travels as a word.

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "machine/device/device.h"
#include "machine/link/link.h"
#include "machine/link/wait.h"

namespace machine {

inline constexpr std::size_t inline_bytes = 32;
inline constexpr std::size_t eager_bytes = 8192;

struct alignas(64) Slot {
  std::atomic<std::uint32_t> sequence{0};  // the low 32 bits of the number of the message in it
  std::atomic<std::uint32_t> sleeping{0};
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;  // offset in the sender's memory; in_line or in_payload otherwise
  std::byte data[inline_bytes];
};
static_assert(sizeof(Slot) == 64);

// Where a message shall land; two to a line.
struct alignas(32) Offer {
  std::atomic<std::uint64_t> number{0};  // of the message; written last
  std::uint64_t address = 0;             // offset in the receiver's memory
  std::uint64_t bytes = 0;
};

struct Channel {
  static constexpr std::uint64_t slots = 64, payloads = 8;
  static constexpr std::uint64_t in_line = ~0ull, in_payload = ~0ull - 1, delivered = ~0ull - 2;
  Slot ring[slots];
  Offer offers[slots];  // by the receiver, that of message k in offers[k % slots]
  alignas(64) std::atomic<std::uint32_t> taken{0};  // by the receiver
  std::atomic<std::uint32_t> sleeping{0};           // the sender, on taken
  alignas(64) std::byte payload[payloads][eager_bytes];
};

// Where a rank's memory is seen from here: address = base + offset. For threads of one process base
// is null and offsets are addresses.
struct PeerMemory {
  std::byte* base = nullptr;
  Channel* channel = nullptr;  // of messages from here to the peer, in the peer's memory
};

// This rank's memory that peers can read.
struct OwnMemory {
  std::byte* base = nullptr;
  std::size_t size = ~std::size_t{0};
  bool contains(const void* data, std::size_t bytes) const {
    const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(data) - base);
    return offset <= size && bytes <= size - offset;
  }
};

class SharedMemoryLink final : public Link {
 public:
  // `incoming` points at group.size() channels in this rank's memory, the i-th from peer i.
  // `retire` is called once, when the link no longer uses incoming; peers may still look at it.
  struct Wiring {
    OwnMemory own;
    Channel* incoming = nullptr;
    std::vector<PeerMemory> peers;
    HostMemory* staging = nullptr;  // for messages from memory that peers cannot read
    std::function<void()> retire;
  };
  SharedMemoryLink(Group group, Wiring wiring, WaitPolicy policy);
  ~SharedMemoryLink() override;
  Transport transport() const override { return Transport::shared_memory; }

 private:
  struct Outgoing {
    std::uint64_t sent = 0;
    std::uint64_t by_address =
        0;                    // the last message that the receiver reads in the sender's memory
    std::uint64_t taken = 0;  // as last seen
    struct Staged {
      std::uint64_t number;
      void* data;
      std::size_t bytes;
    };
    std::vector<Staged> staged;
  };

  std::uint64_t do_send(int peer, const void* data, std::size_t bytes) override;
  void do_wait_sent(int peer, std::uint64_t number) override;
  std::uint64_t last_sent(int peer) const override { return out(peer).sent; }
  void do_post(int peer, int ahead, void* into, std::size_t bytes) override;
  void* do_posted(int peer, std::size_t bytes) override;
  std::uint64_t do_deliver(int peer, std::size_t bytes) override;
  void do_receive(int peer, void* into, std::size_t bytes, Store store) override;
  const void* do_receive_in_place(int peer, std::size_t bytes) override;
  void do_release(int peer) override;

  const Outgoing& out(int peer) const { return outgoing_[static_cast<std::size_t>(peer)]; }
  Outgoing& out(int peer) { return outgoing_[static_cast<std::size_t>(peer)]; }
  Channel& to(int peer) { return *wiring_.peers[static_cast<std::size_t>(peer)].channel; }
  Channel& from(int peer) { return wiring_.incoming[peer]; }
  Waiting waiting(int peer, std::uint64_t number, std::size_t bytes, const char* for_what) const;
  Slot& next_slot(int peer, std::size_t bytes);
  const Slot& arrived(int peer, std::size_t bytes);
  void refresh_taken(int peer);
  void wait_taken(int peer, std::uint64_t number, std::size_t bytes);
  void free_staged(int peer);

  Wiring wiring_;
  Wait wait_;
  std::vector<Outgoing> outgoing_;
  std::vector<std::uint64_t> received_;
};

}  // namespace machine
