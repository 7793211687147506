#pragma once
// Messages around a ring: every rank sends to the next rank and receives from the previous one, and
// computes between the two calls.
//
//   RingExchange ring(cp, device);
//   ring.start(mine, theirs);    // starts the send
//   …compute with mine…
//   ring.finish();               // theirs is received, mine may be overwritten
//
// Every rank makes the same calls in the same order. Several rings over one group alternate: a
// message is received in the order in which it was sent. Over shared_memory, mpi and cuda_ipc the
// send proceeds while the rank computes. Over nccl, send and receive are one group, which start()
// enqueues before the work that follows. Memory of a CUDA device passes through host memory over
// shared_memory and mpi.

#include <cstdint>

#include "collectives/communicator/communicator.h"
#include "machine/device/tensor.h"

namespace layers {

class RingExchange {
 public:
  RingExchange(collectives::Communicator& cp, machine::Device& device);
  void start(const machine::Tensor& out, const machine::Tensor& in);
  void finish();

 private:
  void count_as(machine::Dtype dtype);

  collectives::Communicator& cp_;
  machine::Device& device_;
  int next_, previous_;
  machine::Tensor in_, host_out_, host_in_;  // host_*: only if memory is staged
  std::uint64_t number_ = 0;                 // of the message to the next rank
};

}  // namespace layers
