#pragma once
// The shared_memory transport: a receiver reads the sender's memory in place, or, for small
// messages, from the channel itself: up to inline_bytes travel in the descriptor's line, up to
// eager_bytes in one of 8 payload blocks, more by address.

#include <vector>

#include "machine/device/device.h"
#include "machine/link/channel.h"

namespace machine {

// This rank's memory that peers can read. An address in it is an offset from base; for threads of
// one process base is null and offsets are addresses.
struct OwnMemory {
  std::byte* base = nullptr;
  std::size_t size = ~std::size_t{0};
  bool contains(const void* data, std::size_t bytes) const {
    const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(data) - base);
    return offset <= size && bytes <= size - offset;
  }
};

class SharedMemoryLink final : public ChannelLink {
 public:
  struct Wiring {
    OwnMemory own;
    ChannelEnds ends;
    std::vector<std::byte*> bases;  // of the peers' memory, as seen from here
    HostMemory* staging = nullptr;  // for messages from memory that peers cannot read
  };
  SharedMemoryLink(Group group, Wiring wiring, WaitPolicy policy);
  ~SharedMemoryLink() override;
  Transport transport() const override { return Transport::shared_memory; }

 private:
  struct Staged {
    std::uint64_t number;
    void* data;
    std::size_t bytes;
  };
  struct Lent {
    std::uint64_t last = 0;  // message that the receiver reads in the sender's memory
    std::vector<Staged> staged;
  };

  std::uint64_t do_send(int peer, const void* data, std::size_t bytes) override;
  void do_wait_sent(int peer, std::uint64_t number) override;
  void do_post(int peer, int ahead, void* into, std::size_t bytes) override;
  void* do_posted(int peer, std::size_t bytes) override;
  std::uint64_t do_deliver(int peer, std::size_t bytes) override;
  void do_receive(int peer, void* into, std::size_t bytes, Store store) override;
  const void* do_receive_in_place(int peer, std::size_t bytes) override;
  void do_release(int peer) override;

  Lent& lent(int peer) { return lent_[static_cast<std::size_t>(peer)]; }
  void free_staged(int peer);

  OwnMemory own_;
  std::vector<std::byte*> bases_;
  HostMemory* staging_;
  std::vector<Lent> lent_;
};

}  // namespace machine
