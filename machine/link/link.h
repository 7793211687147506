#pragma once
// A Link moves bytes between the ranks of one group and counts them. Transports:
//   shared_memory  ranks of one host; a receiver reads the sender's memory in place
//   mpi            any hosts; MPI's own point-to-point
//   cuda_ipc       CUDA devices of one host; a receiver reads the sender's device memory in place
//   nccl           a CUDA device for each rank; NCCL's point-to-point
//
// cuda_ipc and nccl work in stream order. They move memory of the world's device, and their calls
// only enqueue on stream(): the device's stream, or a stream of the link (LinkStream). A later
// kernel on that stream sees the received data. For these transports, "until" below orders only
// work that is enqueued afterwards.
//
// Channels are FIFO for each ordered pair of ranks. The k-th receive from a peer matches that
// peer's k-th send to this rank, and their sizes must agree. send only starts the transfer. Its
// bytes must stay unchanged until wait_sent returns, because the receiver may read them in place.
// Waits sleep; they do not only spin. After World::timeout_s they throw machine::Timeout, which
// names both ranks.
//
// Peers are indices into the group. One thread uses a link. shared_memory between processes reads
// messages in place if they are in memory of World::host_device(). send copies other messages, and
// messages of up to eager_bytes.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>

#include "machine/base/operation.h"
#include "machine/device/dtype.h"
#include "machine/device/memory.h"
#include "machine/world/group.h"

namespace machine {

class Stream;

enum class Transport : unsigned char { shared_memory, mpi, cuda_ipc, nccl };
inline constexpr Transport all_transports[] = {Transport::shared_memory, Transport::mpi,
                                               Transport::cuda_ipc, Transport::nccl};
std::string_view name(Transport transport);
// Returns whether the transport moves memory of a CUDA device.
constexpr bool between_devices(Transport transport) {
  return transport == Transport::cuda_ipc || transport == Transport::nccl;
}

// Memory that NCCL registers, so that transfers need no copy: with ncclCommRegister, or as a window
// of all ranks with ncclCommWindowRegister.
enum class Registered : unsigned char { no, buffer, window };

// The stream of a link between devices. Work in a link's own stream runs in parallel with that
// of the device's stream, unless the caller orders the two (start_after_device, end_before_device).
enum class LinkStream : unsigned char { of_device, own };

struct Traffic {
  std::uint64_t bytes_sent = 0, messages_sent = 0, bytes_received = 0, messages_received = 0;
  bool operator==(const Traffic&) const = default;
  Traffic& operator+=(const Traffic& other);
};

// The purpose of the bytes. The volume oracle compares one Traffic for each label and group.
struct TrafficLabel {
  Operation operation = Operation::none;
  Dtype dtype = Dtype::float32;
  auto operator<=>(const TrafficLabel&) const = default;
};

// A send or a receive of Link::exchange.
struct Transfer {
  bool sends;
  int peer;
  void* data;  // only read if `sends`
  std::size_t bytes;
};

class Link {
 public:
  virtual ~Link();
  const Group& group() const { return group_; }
  int rank() const { return group_.index; }
  int size() const { return group_.size(); }
  virtual Transport transport() const = 0;
  // Returns the device's stream that calls are enqueued on; null if calls are complete when they
  // return.
  virtual Stream* stream() const { return nullptr; }
  // Returns whether stream() is not the device's. If it is, or without a stream, the next two
  // functions do nothing.
  bool has_own_stream() const;
  // Later calls start after the work that the device's stream has now.
  void start_after_device();
  // Later work of the device's stream starts after the calls so far.
  void end_before_device();
  // Returns whether memory of the device must pass through host memory.
  bool stages(const Device& device) const;

  // Allocates memory of the transport's own kind and registers it, until the memory is freed, which
  // must be before the link ends. Collective, with the same bytes on all ranks. Throws MachineError
  // if the transport has no such memory.
  virtual Memory allocate_registered(std::size_t bytes, Category category, Registered how);

  // Returns whether a send completes only after its receive starts. The call order alone can
  // deadlock then, so messages are exchanged in groups. A group starts when all its transfers can
  // start (collectives/rounds.h).
  virtual bool is_rendezvous() const { return false; }
  // Performs all transfers as one group, those of each channel in order.
  void exchange(std::span<const Transfer> transfers);

  // Starts sending; returns the message's number on this channel, from 1.
  std::uint64_t send(int peer, const void* data, std::size_t bytes);
  // Sends like send, from a rank that waits for a message of this peer later in the same operation.
  // So the transport may let the peer read data in place where it would have copied them.
  std::uint64_t lend(int peer, const void* data, std::size_t bytes);
  // Sends the same bytes to several peers, in their order. Sets the number of each message.
  void send_to_all(std::span<const int> peers, const void* data, std::size_t bytes,
                   std::span<std::uint64_t> numbers);
  // Waits until the receiver has taken message `number` (and all before it) to this peer; a number
  // beyond the last means all of them.
  void wait_sent(int peer, std::uint64_t number) { do_wait_sent(peer, number); }
  // Waits until every peer has taken every message sent to it.
  void flush();

  // A receiver may offer the place where a message will land. The sender then writes the message
  // there itself, which saves the receiver a copy:
  //
  //   receiver:  post(peer, 1, into, bytes)                        receive(peer, into, bytes)
  //                        \                                        /
  //   sender:               to = posted(peer, bytes); write to; deliver(peer, bytes)
  //
  // post offers `into` for the `ahead`-th message from peer; 1 is the next one. Until that message
  // is received into the same place, the peer may write there and no other code may use it. posted
  // returns the place of the next message to peer, in the peer's memory, or null without an offer:
  // the sender then calls send, as without post. deliver replaces the send.
  void post(int peer, int ahead, void* into, std::size_t bytes) {
    do_post(peer, ahead, into, bytes);
  }
  void* posted(int peer, std::size_t bytes) { return do_posted(peer, bytes); }
  // Returns whether ranks of this host take turns on cores, so that a rank that looks for a peer's
  // post has to give way to it.
  virtual bool shares_cores() const { return false; }
  std::uint64_t deliver(int peer, std::size_t bytes);

  // Lets the next message from peer move to `into` from now on, if the transport moves messages
  // during other work without a thread. The receive into the same place completes it, before any
  // other receive from that peer.
  void start_receive(int peer, void* into, std::size_t bytes) {
    do_start_receive(peer, into, bytes);
  }
  // Copies the next message from peer to `into`; bypasses the cache if `store` is streaming.
  void receive(int peer, void* into, std::size_t bytes, Store store = Store::cached);
  // Returns the next message from peer, in place: valid until release(peer), which must precede the
  // next receive from that peer.
  const void* receive_in_place(int peer, std::size_t bytes);
  void release(int peer) { do_release(peer); }

  // Bytes sent from now on count under this label.
  void count_as(TrafficLabel label) {
    if (label == label_) return;
    label_ = label;
    current_ = &traffic_[label];
  }
  const std::map<TrafficLabel, Traffic>& traffic() const { return traffic_; }
  Traffic total() const;
  void reset_traffic();
  // Counts the messages of a graph's launch, which make no calls.
  void count(const std::map<TrafficLabel, Traffic>& repeated);

 protected:
  explicit Link(Group group);
  Operation operation() const { return label_.operation; }
  virtual void do_send_to_all(std::span<const int> peers, const void* data, std::size_t bytes,
                              std::span<std::uint64_t> numbers);

 private:
  virtual void do_exchange(std::span<const Transfer> transfers);
  virtual std::uint64_t do_send(int peer, const void* data, std::size_t bytes) = 0;
  virtual std::uint64_t do_lend(int peer, const void* data, std::size_t bytes) {
    return do_send(peer, data, bytes);
  }
  virtual void do_wait_sent(int peer, std::uint64_t number) = 0;
  virtual std::uint64_t last_sent(int peer) const = 0;
  virtual void do_post(int, int, void*, std::size_t) {}
  virtual void* do_posted(int, std::size_t) { return nullptr; }
  virtual std::uint64_t do_deliver(int, std::size_t) { return 0; }
  virtual void do_start_receive(int, void*, std::size_t) {}
  virtual void do_receive(int peer, void* into, std::size_t bytes, Store store) = 0;
  virtual const void* do_receive_in_place(int peer, std::size_t bytes) = 0;
  virtual void do_release(int peer) = 0;

  Group group_;
  std::map<TrafficLabel, Traffic> traffic_;
  TrafficLabel label_;
  Traffic* current_ = &traffic_[label_];
};

}  // namespace machine
