#pragma once
// A rank's end of a communicator, and the operations that it queues.
//
// An operation is a RemotePoint of its stream: at the front of the stream it publishes its calls,
// requests the peers that it lacks, and moves data as soon as both sides have come. Each end has a
// thread that serves requests of peers: it runs the rank's stream up to the requested operation.

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "machine/virtual_gpu/nccl/segment.h"
#include "machine/virtual_gpu/streams.h"

namespace machine::virtual_gpu::nccl {

// A call of a rank: what it agrees with its peers, and its buffers.
struct Task {
  Call call;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t input_bytes = 0, output_bytes = 0;
  std::vector<std::byte> result;  // of a collective, until all peers have read the input
  bool complete = false;
};

// Sets the text that ncclGetLastError returns, and returns the result.
ncclResult_t refused(ncclResult_t result, std::string text);
const std::string& last_text();

// Returns the number of communicators that this process has made.
int communicators_made();

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(std::shared_ptr<Segment> segment, int size, int rank, int device, bool blocking);
  int size() const { return size_; }
  int rank() const { return rank_; }
  int device() const { return device_; }
  bool blocking() const { return blocking_; }
  Segment& segment() { return *segment_; }
  Rank& of(int rank) { return segment_->all[rank]; }
  Rank& mine() { return of(rank_); }

  // Performs a call of the host: repeats `step` until its result is not ncclInProgress. A
  // non-blocking communicator does so in state(), after a random number of calls of it.
  ncclResult_t perform(std::function<ncclResult_t()> step);
  ncclResult_t state();
  // Returns an error if an earlier call is in progress or has failed.
  ncclResult_t ready();

  void queue(const std::shared_ptr<Queue>& queue, std::vector<Task> tasks);
  // Runs queued operations as far as that needs no other process. Returns whether all are done.
  bool flush();
  void serve();  // the thread's function
  void close(State state);

  // Only the first error counts.
  void fail(ncclResult_t result, const std::string& text);
  bool failed() const { return error_ != ncclSuccess; }
  std::string error_text();
  // Returns ncclRemoteError, with a text, if the rank has aborted or ended; ncclInvalidUsage if the
  // virtual NCCL has found an error there.
  ncclResult_t check_peer(int rank);
  // Asks the rank's thread to run its stream until the end of its operation.
  void request(int rank, std::uint32_t operation);

 private:
  friend class Work;
  const std::shared_ptr<Segment> segment_;
  const int size_, rank_, device_;
  const bool blocking_;
  std::function<ncclResult_t()> pending_;
  int polls_ = 0;

  std::mutex mutex_;                       // of the fields below
  std::map<std::uint32_t, Point> points_;  // by operation that is not done
  std::uint32_t queued_ = 0;
  std::uint64_t collectives_ = 0, sent_[most_ranks] = {}, received_[most_ranks] = {};
  std::atomic<ncclResult_t> error_{ncclSuccess};
  std::string error_text_;
};

// Returns the error of NCCL's call `name` for a buffer that is not live memory of the
// communicator's device, or ncclSuccess.
ncclResult_t check_memory(const char* name, const Communicator& on, const void* data,
                          std::size_t bytes);

// Returns this process's end of a live communicator, or null with the text set.
std::shared_ptr<Communicator> end_of(ncclComm_t comm);

// Returns the number of registrations that were not released (registration.cpp).
std::size_t registrations();

}  // namespace machine::virtual_gpu::nccl
