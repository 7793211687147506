#pragma once
// The nccl transport: ncclSend and ncclRecv of bytes on a communicator of the group, one GPU per
// rank (NCCL User Guide, "Point-to-point communication"). Also gives access to NCCL's collectives,
// with which ours are compared. Only in builds with NCCL.
//
// A send of NCCL may wait for its receive. Sends are therefore kept until the next receive,
// exchange or wait_sent and are issued with it in one group. Communicators are non-blocking. A call
// polls until NCCL has queued it. After World::timeout_s it aborts the communicator.

#include <nccl.h>

#include <vector>

#include "machine/device/device.h"
#include "machine/link/link.h"
#include "machine/world/control/wait.h"

namespace machine {

class NcclLink final : public Link {
 public:
  // Takes ownership of the communicator, whose ranks are the group's, in order, on `device`.
  NcclLink(Group group, ncclComm_t communicator, Device& device, WaitPolicy policy);
  ~NcclLink() override;
  Transport transport() const override { return Transport::nccl; }
  Stream* stream() const override { return &device_.stream(); }
  bool is_rendezvous() const override { return true; }

  // For direct NCCL calls, on queue() of the device that make_current() selects. Throws
  // MachineError if the communicator was aborted.
  ncclComm_t communicator() const;
  cudaStream_t queue() const;
  void make_current() const;
  // Waits until NCCL has queued the call that returned `result`. Throws MachineError with the call,
  // this rank and the peer (an index into the group; -1: all). `bytes` is only for the board.
  void finish(ncclResult_t result, const char* call, int peer = -1, std::size_t bytes = 0);
  // Runs calls() between ncclGroupStart and ncclGroupEnd. Throws an error of the calls only after
  // ncclGroupEnd.
  template <class Calls>
  void group_of(const char* what, int peer, std::size_t bytes, Calls calls) {
    check(ncclGroupStart(), "ncclGroupStart", peer);
    ncclResult_t result = ncclSuccess;
    calls([&result](ncclResult_t one) {
      if (result == ncclSuccess && one != ncclInProgress) result = one;
    });
    const ncclResult_t end = ncclGroupEnd();
    check(result, what, peer);
    finish(end, what, peer, bytes);
  }
  // The index-th of size() + 1 bytes of device memory, for empty messages.
  void* byte(int index) { return static_cast<std::byte*>(bytes_.data()) + index; }

 private:
  std::uint64_t do_send(int peer, const void* data, std::size_t bytes) override;
  void do_wait_sent(int peer, std::uint64_t number) override;
  std::uint64_t last_sent(int peer) const override { return sent_[peer]; }
  void do_exchange(std::span<const Transfer> transfers) override;
  void do_receive(int peer, void* into, std::size_t bytes, Store store) override;
  const void* do_receive_in_place(int peer, std::size_t bytes) override;
  void do_release(int) override {}

  void check(ncclResult_t result, const char* call, int peer);
  void abort();

  ncclComm_t communicator_;
  Device& device_;
  int index_;  // of the device
  Wait wait_;
  std::vector<Transfer> waiting_;    // sends that are not yet in a group
  std::vector<std::uint64_t> sent_;  // by peer
  std::uint64_t calls_ = 0;          // that NCCL has queued
  std::vector<Memory> landed_;       // by peer, buffers of receive_in_place
  Memory bytes_;
};

}  // namespace machine
