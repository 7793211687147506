#include "machine/virtual_gpu/nccl/work.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "machine/virtual_gpu/errors.h"
#include "machine/virtual_gpu/faults.h"
#include "machine/virtual_gpu/memory.h"
#include "machine/virtual_gpu/nccl/reduce.h"

namespace machine::virtual_gpu::nccl {
namespace {

constexpr std::uint64_t bit(int rank) { return std::uint64_t{1} << rank; }

}  // namespace

void Work::publish() {
  published_ = true;
  std::uint32_t count = 0;
  for (Task& task : tasks_) {
    Part& part = this->part(count);
    part.call = task.call;
    part.number = numbers_[count++];
    part.has_read = false;
    part.taken = 0;
    // Its memory may have been freed since the call.
    if (check_range(shape(task.call.kind).call, task.input, task.input_bytes) != cudaSuccess ||
        check_range(shape(task.call.kind).call, task.output, task.output_bytes) != cudaSuccess)
      return break_with(cudaGetErrorString(cudaErrorInvalidValue));
    Allocation memory;
    if (task.input_bytes == 0 || virtual_gpu::find(task.input, &memory) != Place::device) continue;
    part.file = memory.file;
    part.offset = static_cast<std::uint64_t>(task.input - memory.mapping);
  }
  on_->mine().count = count;
  on_->mine().reached = number_;
  on_->segment().ring();
}

// Returns a published call of the rank, or null. A call stays published until this rank has taken
// its input, so only a search without success can meet a change.
Part* Work::find(int rank, Kind kind, std::uint64_t number) {
  Rank& of = on_->of(rank);
  const std::uint32_t reached = of.reached;
  if (reached == 0) return nullptr;
  for (std::uint32_t i = 0; i < of.count; ++i) {
    Part& part = of.parts[i];
    const bool meets = is_collective(kind)
                           ? is_collective(part.call.kind)
                           : part.call.kind == kind && part.call.peer == on_->rank();
    if (meets && part.number == number) return of.reached == reached ? &part : nullptr;
  }
  return nullptr;
}

void Work::collect(std::size_t index) {
  Task& task = tasks_[index];
  const Call& call = task.call;
  const Shape& how = shape(call.kind);
  std::vector<Part*> sources;
  for (int rank = 0; rank < on_->size(); ++rank) {
    if (!call.gives(rank)) continue;
    Part* source = find(rank, call.kind, numbers_[index]);
    if (!source) return;
    if (source->call != call)
      return break_with(fmt::format("rank {} calls {}, rank {} {}", on_->rank(), text_of(call),
                                    rank, text_of(source->call)));
    sources.push_back(source);
  }
  const std::size_t bytes = call.count * size_of(call.type);
  const std::size_t skipped = how.of_own_share ? bytes * static_cast<std::size_t>(on_->rank()) : 0;
  Sum sum(call.type, call.op, how.reduces ? call.count : 0, on_->size());
  std::vector<std::byte> read(bytes);
  for (int rank = 0, next = 0; rank < on_->size(); ++rank) {
    if (!call.gives(rank)) continue;
    const Part& source = *sources[static_cast<std::size_t>(next++)];
    if (is_cut_off(rank)) return;
    if (!read_file(on_->of(rank).process, source.file, source.offset + skipped, read.data(), bytes))
      return lost(rank);
    if (how.reduces)
      sum.add(read.data());
    else
      task.result.insert(task.result.end(), read.begin(), read.end());
  }
  if (how.reduces) task.result = sum.result();
  part(index).has_read = true;
  for (Part* source : sources) source->taken |= bit(on_->rank());
  on_->segment().ring();
}

void Work::receive(std::size_t index) {
  Task& task = tasks_[index];
  Part* source = find(task.call.peer, Kind::send, numbers_[index]);
  if (!source) return;
  if (source->call.count != task.call.count || source->call.type != task.call.type)
    return break_with(fmt::format("rank {} calls {}, rank {} {}", on_->rank(), text_of(task.call),
                                  task.call.peer, text_of(source->call)));
  if (is_cut_off(task.call.peer)) return;
  // Not read into the device memory: the kernel does not make it accessible (memory.h).
  std::vector<std::byte> read(task.output_bytes);
  if (!read_file(on_->of(task.call.peer).process, source->file, source->offset, read.data(),
                 read.size()))
    return lost(task.call.peer);
  if (!read.empty()) std::memcpy(task.output, read.data(), read.size());
  part(index).has_read = task.complete = true;
  source->taken |= bit(on_->rank());
  on_->segment().ring();
}

void Work::move(std::size_t index) {
  Task& task = tasks_[index];
  if (task.call.kind == Kind::receive) return receive(index);
  Part& mine = part(index);
  if (task.call.kind == Kind::send) {
    task.complete = mine.taken != 0;
    return;
  }
  const bool takes = task.call.takes(on_->rank());
  if (takes && !mine.has_read) collect(index);
  if (complete_ || (takes && !mine.has_read) || !awaited(index).empty()) return;
  if (!task.result.empty()) std::memcpy(task.output, task.result.data(), task.result.size());
  task.complete = true;
}

// Returns the ranks whose input this rank needs, or which have not taken its input.
std::vector<int> Work::awaited(std::size_t index) {
  const Task& task = tasks_[index];
  Part& mine = part(index);
  if (task.complete || (task.call.kind == Kind::send && mine.taken != 0)) return {};
  if (!is_collective(task.call.kind)) return {task.call.peer};
  std::vector<int> ranks;
  for (int rank = 0; rank < on_->size(); ++rank) {
    if (rank == on_->rank()) continue;
    const bool reads = task.call.takes(on_->rank()) && task.call.gives(rank) && !mine.has_read &&
                       !find(rank, task.call.kind, numbers_[index]);
    const bool gives =
        task.call.gives(on_->rank()) && task.call.takes(rank) && (mine.taken & bit(rank)) == 0;
    if (reads || gives) ranks.push_back(rank);
  }
  return ranks;
}

// Returns whether a published call of the rank waits for this rank.
bool Work::is_awaited_by(int rank, const Part& part) {
  if (!is_collective(part.call.kind))
    return part.call.peer == on_->rank() && part.taken == 0 && !part.has_read;
  return (part.call.gives(rank) && part.call.takes(on_->rank()) &&
          (part.taken & bit(on_->rank())) == 0) ||
         (part.call.takes(rank) && part.call.gives(on_->rank()) && !part.has_read);
}

// Returns whether this rank's call is the other end of the rank's call, or the same collective.
bool Work::meets(std::size_t index, int rank, const Part& other) const {
  const Call& call = tasks_[index].call;
  if (numbers_[index] != other.number) return false;
  if (is_collective(call.kind)) return call == other.call;
  return !is_collective(other.call.kind) && call.kind != other.call.kind && call.peer == rank &&
         other.call.peer == on_->rank();
}

std::string Work::conflict(std::size_t index, int rank) {
  Rank& theirs = on_->of(rank);
  const std::uint32_t reached = theirs.reached;
  if (reached == 0 || rank == on_->rank()) return "";
  std::string text;
  for (std::uint32_t i = 0; i < theirs.count; ++i) {
    const Part& other = theirs.parts[i];
    if (meets(index, rank, other)) return "";
    bool offered = !is_awaited_by(rank, other);
    for (std::size_t j = 0; j < tasks_.size() && !offered; ++j) offered = meets(j, rank, other);
    if (!offered && text.empty())
      text = fmt::format("rank {} waits for rank {} in {}, which waits for it in {}", on_->rank(),
                         rank, text_of(tasks_[index].call), text_of(Call(other.call)));
  }
  return theirs.reached == reached ? text : "";
}

bool Work::reached() {
  if (complete_) return true;
  const bool aborted = on_->mine().state == State::aborted;
  if (aborted || sticky_error(on_->device()) != cudaSuccess) {
    if (!aborted) on_->fail(ncclUnhandledCudaError, "the device of this rank has failed");
    end();
    return true;
  }
  if (on_->failed()) return false;  // as a kernel that waits for ever, until the abort
  if (!published_) publish();
  bool all = true;
  for (std::size_t i = 0; i < tasks_.size() && !complete_; ++i) {
    if (!tasks_[i].complete) move(i);
    all &= tasks_[i].complete;
  }
  if (all) end();
  return complete_;
}

void Work::request() {
  for (std::size_t i = 0; i < tasks_.size() && !complete_ && !on_->failed(); ++i) {
    // Read first: a rank that takes the input now is done with this operation, not with the next.
    std::uint32_t next[most_ranks];
    for (int rank = 0; rank < on_->size(); ++rank) next[rank] = on_->of(rank).done + 1;
    for (const int rank : awaited(i)) {
      std::string text = conflict(i, rank);
      const ncclResult_t state = text.empty() ? on_->check_peer(rank) : ncclInvalidUsage;
      if (state == ncclSuccess) {
        on_->request(rank, next[rank]);
        continue;
      }
      // The rank may have taken the input just now, and gone on.
      if (std::ranges::count(awaited(i), rank) == 0) continue;
      if (text.empty()) text = fmt::format("{}, in {}", last_text(), text_of(tasks_[i].call));
      return state == ncclInvalidUsage ? break_with(text) : on_->fail(state, text);
    }
  }
}

void Work::wait() {
  const Deadline deadline;
  for (;;) {
    const std::uint32_t seen = on_->segment().bell;
    if (reached()) return;
    request();
    if (complete_) return;
    if (deadline.passed()) {
      const auto open = std::ranges::find(tasks_, false, &Task::complete);
      return break_with(
          on_->failed()
              ? on_->error_text()
              : fmt::format(
                    "rank {} waited {} s in {} for rank {}", on_->rank(),
                    configuration().nccl_wait_s, text_of(open->call),
                    fmt::join(awaited(static_cast<std::size_t>(open - tasks_.begin())), ", ")));
    }
    sleep_on(on_->segment().bell, seen, 0.05);
  }
}

void Work::lost(int rank) {
  on_->fail(ncclRemoteError,
            fmt::format("rank {} (process {}) has ended", rank, on_->of(rank).process));
}

bool Work::is_cut_off(int rank) {
  const Rank& other = on_->of(rank);
  const bool lost = rank != on_->rank() && other.host == on_->mine().host &&
                    link_is_lost(on_->mine().device, other.device);
  if (lost)
    break_with(fmt::format("the link between rank {} and rank {} is lost", on_->rank(), rank),
               cudaErrorNvlinkUncorrectable);
  return lost;
}

void Work::break_with(const std::string& text, cudaError_t status) {
  on_->fail(status == cudaErrorLaunchFailure ? ncclInvalidUsage : ncclUnhandledCudaError, text);
  break_device(on_->device(), status, text);
  end();
}

// An operation that ends without success leaves NaN.
void Work::end() {
  for (const Task& task : tasks_)
    if (!task.complete && task.output_bytes > 0 &&
        check_range("", task.output, task.output_bytes) == cudaSuccess)
      std::memset(task.output, 0xff, task.output_bytes);
  complete_ = true;
  Rank& mine = on_->mine();
  mine.reached = 0;
  mine.done = number_;
  {
    const std::lock_guard lock(on_->mutex_);
    on_->points_.erase(number_);
  }
  on_->segment().ring();
}

}  // namespace machine::virtual_gpu::nccl
