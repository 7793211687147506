#include "machine/virtual_gpu/nccl/communicator.h"

#include <fmt/format.h>

#include <cstdio>

#include "machine/virtual_gpu/configuration.h"
#include "machine/virtual_gpu/errors.h"
#include "machine/virtual_gpu/graphs.h"
#include "machine/virtual_gpu/nccl/work.h"

namespace machine::virtual_gpu::nccl {
namespace {

thread_local std::string last;
std::atomic<int> made{0};

}  // namespace

ncclResult_t refused(ncclResult_t result, std::string text) {
  last = std::move(text);
  return result;
}
const std::string& last_text() { return last; }

int communicators_made() { return made; }

Communicator::Communicator(std::shared_ptr<Segment> segment, int size, int rank, int device,
                           bool blocking)
    : segment_(std::move(segment)), size_(size), rank_(rank), device_(device), blocking_(blocking) {
  ++made;
}

ncclResult_t Communicator::perform(std::function<ncclResult_t()> step) {
  if (!blocking_) {
    pending_ = std::move(step);
    polls_ = 1 + static_cast<int>(random_number() % 5);
    return ncclInProgress;
  }
  const Deadline deadline;
  for (;;) {
    const std::uint32_t seen = segment_->bell;
    const ncclResult_t result = step();
    if (result != ncclInProgress) return result;
    if (deadline.passed()) {
      fail(ncclSystemError,
           fmt::format("rank {} waited {} s: {}", rank_, configuration().nccl_wait_s, last_text()));
      return refused(ncclSystemError, error_text());
    }
    sleep_on(segment_->bell, seen, 0.01);
  }
}

ncclResult_t Communicator::state() {
  if (pending_) {
    if (polls_-- > 0) return ncclInProgress;
    const ncclResult_t result = pending_();
    if (result == ncclInProgress) return result;
    pending_ = nullptr;
    if (result != ncclSuccess) fail(result, last_text());
  }
  return error_;
}

ncclResult_t Communicator::ready() {
  if (pending_)
    return refused(ncclInvalidArgument,
                   "the communicator is used before its last call has returned ncclSuccess");
  if (failed()) return refused(error_, error_text());
  return ncclSuccess;
}

void Communicator::queue(const std::shared_ptr<Queue>& queue, std::vector<Task> tasks) {
  // Each launch of a graph is an operation of its own.
  if (is_captured(queue) &&
      capture(queue, [self = shared_from_this(), tasks](const auto& launched) {
        self->queue(launched, tasks);
      }))
    return;
  std::uint32_t number = 0;
  std::vector<std::uint64_t> numbers;
  {
    const std::lock_guard lock(mutex_);
    number = ++queued_;
    for (const Task& task : tasks)
      numbers.push_back(task.call.kind == Kind::send      ? ++sent_[task.call.peer]
                        : task.call.kind == Kind::receive ? ++received_[task.call.peer]
                                                          : ++collectives_);
  }
  Operation operation;
  operation.remote =
      std::make_shared<Work>(shared_from_this(), number, std::move(tasks), std::move(numbers));
  const Point point = append(queue, std::move(operation));
  {
    const std::lock_guard lock(mutex_);
    if (mine().done < number) points_[number] = point;
  }
  segment_->ring();  // a peer may have requested it already
}

bool Communicator::flush() {
  Point end;
  {
    const std::lock_guard lock(mutex_);
    if (points_.empty()) return true;
    end = points_.rbegin()->second;
  }
  return try_until(end);
}

void Communicator::serve() {
  for (;;) {
    const std::uint32_t seen = segment_->bell;
    const State state = mine().state;
    if (state == State::finalized || state == State::aborted) return;
    Point point;
    {
      const std::lock_guard lock(mutex_);
      if (mine().requested > mine().done && !points_.empty() &&
          points_.begin()->first <= mine().requested)
        point = points_.begin()->second;
    }
    if (point.queue)
      run_until(point);
    else
      sleep_on(segment_->bell, seen, 1);
  }
}

void Communicator::close(State state) {
  mine().state = state;
  segment_->ring();
}

void Communicator::fail(ncclResult_t result, const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (failed()) return;
  error_text_ = text;
  error_ = result;
  std::fprintf(stderr, "virtual NCCL, rank %d of %d: %s\n", rank_, size_, text.c_str());
  if (result != ncclRemoteError) close(State::failed);  // peers end with this text
}

std::string Communicator::error_text() {
  const std::lock_guard lock(mutex_);
  return error_text_;
}

ncclResult_t Communicator::check_peer(int rank) {
  const State state = of(rank).state;
  if (state == State::failed)
    return refused(ncclInvalidUsage, fmt::format("rank {} has failed", rank));
  if (state == State::aborted)
    return refused(ncclRemoteError, fmt::format("rank {} has aborted the communicator", rank));
  if (state != State::absent && has_ended(of(rank).process))
    return refused(ncclRemoteError,
                   fmt::format("rank {} (process {}) has ended", rank, of(rank).process));
  return ncclSuccess;
}

void Communicator::request(int rank, std::uint32_t operation) {
  if (rank == rank_) return;
  if (of(rank).requested >= operation) return;
  of(rank).requested = operation;
  segment_->ring();
}

}  // namespace machine::virtual_gpu::nccl
