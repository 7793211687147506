#pragma once
// The nccl transport: ncclSend and ncclRecv of bytes on a communicator of the group, one GPU per
// rank (NCCL User Guide, "Point-to-point communication"). Also gives access to NCCL's collectives,
// with which ours are compared. Only in builds with NCCL.
//
// A send of NCCL may wait for its receive. Sends are therefore kept until the next receive,
// exchange or wait_sent and are issued with it in one group. Communicators are blocking: a call
// queues its work and returns, but the first calls of a communicator may wait for its peers. The
// watchdog watches them, like the calls of MPI.

#include <nccl.h>

#include <vector>

#include "machine/device/device.h"
#include "machine/link/link.h"
#include "machine/link/nccl_communicators.h"
#include "machine/world/control/wait.h"

namespace machine {

class NcclLink final : public Link {
 public:
  // The resources of a link. The ranks of the communicator are the group's, in order, on `device`.
  struct Wiring {
    Device* device;
    std::unique_ptr<Stream> own_stream;  // null: the link uses the device's
    NcclCommunicators* communicators;
    ncclComm_t communicator;  // is given back
    Memory bytes;             // spare_bytes
    WaitPolicy policy;
  };
  NcclLink(Group group, Wiring wiring);
  ~NcclLink() override;
  Transport transport() const override { return Transport::nccl; }
  Stream* stream() const override {
    return wiring_.own_stream ? wiring_.own_stream.get() : &wiring_.device->stream();
  }
  bool is_rendezvous() const override { return true; }
  Memory allocate_registered(std::size_t bytes, Category category, Registered how) override;

  // For direct NCCL calls, on queue() of the device that make_current() selects. Throws
  // MachineError if the communicator was aborted.
  ncclComm_t communicator() const;
  cudaStream_t queue() const;
  void make_current() const;
  // Calls NCCL. Throws MachineError with the name of the call, this rank and the peer (an index
  // into the group; -1: all). `bytes` is only for the board.
  template <class Call>
  void call(const char* what, int peer, std::size_t bytes, Call call) {
    ncclResult_t result = ncclSuccess;
    {
      const Wait::InLibrary inside(wait_.policy(), operation(), ++calls_, bytes);
      result = call();
    }
    check(result, what, peer, bytes);
  }
  // Runs calls() between ncclGroupStart and ncclGroupEnd. Throws an error of the calls only after
  // ncclGroupEnd.
  template <class Calls>
  void group_of(const char* what, int peer, std::size_t bytes, Calls calls) {
    call(what, peer, bytes, [&] {
      ncclResult_t result = ncclGroupStart();
      if (result != ncclSuccess) return result;
      calls([&result](ncclResult_t one) {
        if (result == ncclSuccess) result = one;
      });
      const ncclResult_t end = ncclGroupEnd();
      return result == ncclSuccess ? end : result;
    });
  }
  // Device memory for empty messages.
  static constexpr std::size_t spare_bytes = 4096;
  void* byte(std::size_t index) { return static_cast<std::byte*>(wiring_.bytes.data()) + index; }

 private:
  std::uint64_t do_send(int peer, const void* data, std::size_t bytes) override;
  void do_wait_sent(int peer, std::uint64_t number) override;
  std::uint64_t last_sent(int peer) const override { return sent_[peer]; }
  void do_exchange(std::span<const Transfer> transfers) override;
  void do_receive(int peer, void* into, std::size_t bytes, Store store) override;
  const void* do_receive_in_place(int peer, std::size_t bytes) override;
  void do_release(int) override {}

  void make_current_to_free() const noexcept;
  void check(ncclResult_t result, const char* call, int peer, std::size_t bytes);
  void abort();

  Wiring wiring_;
  int index_;  // of the device
  Wait wait_;
  std::vector<Transfer> waiting_;    // sends that are not yet in a group
  std::vector<std::uint64_t> sent_;  // by peer
  std::uint64_t calls_ = 0;          // of NCCL
  std::vector<Memory> landed_;       // by peer, buffers of receive_in_place
};

}  // namespace machine
