#pragma once
// The shared_memory transport: a receiver reads the sender's memory in place, or, for small
// messages, from the channel itself: up to inline_bytes travel in the descriptor's line, up to
// eager_bytes in one of 8 payload blocks, more by address. If several peers get the same eager
// bytes, they all read one copy in the sender's memory. If ranks share cores, a message of more
// than 2 KiB goes by address also if its sender waits for the receiver anyway (Link::lend).

#include <vector>

#include "machine/link/channel.h"
#include "machine/world/world.h"

namespace machine {

class SharedMemoryLink final : public ChannelLink {
 public:
  // Collective over the group, whose ranks share a host.
  SharedMemoryLink(World& world, const Group& group);
  ~SharedMemoryLink() override;
  Transport transport() const override { return Transport::shared_memory; }

 private:
  struct Staged {
    std::uint64_t number;
    void* data;
    std::size_t bytes;
  };
  // A copy that several peers read; `numbers` of its messages, by peer (0: none).
  struct Copy {
    std::byte* data = nullptr;
    std::vector<std::uint64_t> numbers;
  };
  struct Lent {
    std::uint64_t last = 0;  // message that the receiver reads in the sender's memory
    std::vector<Staged> staged;
  };

  std::uint64_t do_send(int peer, const void* data, std::size_t bytes) override;
  std::uint64_t do_lend(int peer, const void* data, std::size_t bytes) override;
  void do_send_to_all(std::span<const int> peers, const void* data, std::size_t bytes,
                      std::span<std::uint64_t> numbers) override;
  void do_wait_sent(int peer, std::uint64_t number) override;
  void do_post(int peer, int ahead, void* into, std::size_t bytes) override;
  void* do_posted(int peer, std::size_t bytes) override;
  std::uint64_t do_deliver(int peer, std::size_t bytes) override;
  void do_receive(int peer, void* into, std::size_t bytes, Store store) override;
  const void* do_receive_in_place(int peer, std::size_t bytes) override;
  void do_release(int peer) override;

  // Sends a message that does not fit into its descriptor. Apart, so that shorter ones stay short.
  [[gnu::noinline]] std::uint64_t send_longer(int peer, Slot& slot, const void* data,
                                              std::size_t bytes);
  // Sends a message that the peer reads where it is, or in a copy if the peer cannot read there.
  std::uint64_t send_in_place(int peer, Slot& slot, const void* data, std::size_t bytes);
  void free_staged(int peer);
  // Returns the next copy to write to, or null while a peer may still read it.
  Copy* free_copy();
  bool readable_by_peers(const void* data, std::size_t bytes) const {
    const std::uint64_t offset = shared_.offset(data);
    return offset <= shared_.bytes && bytes <= shared_.bytes - offset;
  }
  std::byte* at(int peer, std::uint64_t address) const {
    return shared_.at(group().members[peer], address);
  }

  World::SharedMemory shared_;  // its allocator stages messages from other memory
  std::vector<Lent> lent_;      // by peer
  std::vector<Copy> copies_;
  std::size_t next_copy_ = 0;
};

}  // namespace machine
