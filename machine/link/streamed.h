#pragma once
// A link in stream order between devices that reach each other's memory. Channels announce a
// message when it is queued, before it has arrived. Marks in the streams (events) keep the order.
//
// It deadlocks only if shared_memory would. Hosts wait only for descriptors, which are written on
// queueing. A stream waits only for marks that were queued before its wait, so waits cannot form a
// cycle. A later mark may replace an earlier mark before the wait for it. This only prolongs the
// wait, so a few marks per peer are enough.

#include <cstdint>
#include <memory>
#include <vector>

#include "machine/device/device.h"
#include "machine/link/channel.h"

namespace machine {

// The meaning of a point in a stream, for one peer.
enum class Mark : unsigned char {
  sent,    // of the sender: the message is in its memory
  taken,   // of the receiver: it no longer reads there
  posted,  // of the receiver: the place for a message is free
};
inline constexpr int num_marks = 3;

// The device operations that the link needs. Peers are indices into the group; `number` is the
// message's.
class Neighbours {
 public:
  virtual ~Neighbours() = default;
  virtual Stream& stream() = 0;
  // Records a mark at the current end of this rank's stream.
  virtual void record(Mark mark, int peer, std::uint64_t number) = 0;
  // Makes later work of this rank's stream wait for that mark of the peer for this rank, or for a
  // later mark. The mark is already recorded.
  virtual void wait(Mark mark, int peer, std::uint64_t number) = 0;
  // Returns the address of memory of this rank's device as a word for peers. The word is below the
  // special words of Channel. Throws std::logic_error for other memory.
  virtual std::uint64_t address(const void* data, std::size_t bytes) = 0;
  // Converts such a word of a peer (or of this rank) to an address on this device.
  virtual std::byte* at(int peer, std::uint64_t address) = 0;
};

class StreamedLink final : public ChannelLink {
 public:
  StreamedLink(Group group, ChannelEnds ends, std::unique_ptr<Neighbours> neighbours,
               WaitPolicy policy);
  ~StreamedLink() override;
  Transport transport() const override { return Transport::cuda_ipc; }
  Stream* stream() const override { return &neighbours_->stream(); }

 private:
  std::uint64_t do_send(int peer, const void* data, std::size_t bytes) override;
  void do_wait_sent(int peer, std::uint64_t number) override;
  void do_post(int peer, int ahead, void* into, std::size_t bytes) override;
  void* do_posted(int peer, std::size_t bytes) override;
  std::uint64_t do_deliver(int peer, std::size_t bytes) override;
  void do_receive(int peer, void* into, std::size_t bytes, Store store) override;
  const void* do_receive_in_place(int peer, std::size_t bytes) override;
  void do_release(int peer) override;

  std::unique_ptr<Neighbours> neighbours_;
  std::vector<std::uint64_t> awaited_;  // by peer: last message whose `taken` the stream waits for
};

}  // namespace machine
