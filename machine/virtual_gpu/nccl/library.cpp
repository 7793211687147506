// The functions of NCCL that machine/link and collectives call.

#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "machine/virtual_gpu/configuration.h"
#include "machine/virtual_gpu/counts.h"
#include "machine/virtual_gpu/errors.h"
#include "machine/virtual_gpu/graphs.h"
#include "machine/virtual_gpu/memory.h"
#include "machine/virtual_gpu/nccl/communicator.h"
#include "machine/virtual_gpu/nccl/reduce.h"

// The handle.
struct ncclComm {
  std::shared_ptr<machine::virtual_gpu::nccl::Communicator> end;
};

namespace machine::virtual_gpu::nccl {
namespace {

std::mutex mutex;  // of the handles
std::set<ncclComm_t> handles;

}  // namespace

ncclResult_t check_memory(const char* name, const Communicator& on, const void* data,
                          std::size_t bytes) {
  Allocation memory;
  if (find(data, &memory) != Place::device)
    return refused(ncclInvalidArgument,
                   fmt::format("{}: {} (it takes device memory)", name, describe(data)));
  if (check_range(name, data, bytes) != cudaSuccess)
    return refused(ncclInvalidArgument, cudaGetErrorString(cudaGetLastError()));
  if (memory.device != on.device())
    return refused(ncclInvalidArgument,
                   fmt::format("{}: {} is not on device {} of the communicator", name,
                               text_of(memory), on.device()));
  return ncclSuccess;
}

std::shared_ptr<Communicator> end_of(ncclComm_t comm) {
  const std::lock_guard lock(mutex);
  if (handles.contains(comm)) return comm->end;
  refused(ncclInvalidArgument, "not a communicator, or a destroyed one");
  return nullptr;
}

namespace {

ncclComm_t handle_of(std::shared_ptr<Communicator> end) {
  const std::lock_guard lock(mutex);
  return *handles.insert(new ncclComm{std::move(end)}).first;
}
void forget(ncclComm_t comm) {
  const std::lock_guard lock(mutex);
  handles.erase(comm);
  delete comm;
}

// The group of this thread.
struct Queued {
  std::shared_ptr<Communicator> on;
  std::shared_ptr<Queue> queue;
  std::vector<Task> tasks;
};
struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<Queued> queued;  // by communicator, in the order of the first calls
};
thread_local Group group;

// NCCL does not say in which order the calls of a group read and write.
bool overlap(const std::vector<Task>& tasks) {
  const auto meet = [](const std::byte* a, std::size_t bytes, const std::byte* b,
                       std::size_t other) {
    return bytes > 0 && other > 0 && a < b + other && b < a + bytes;
  };
  for (std::size_t i = 0; i < tasks.size(); ++i)
    for (std::size_t j = 0; j < tasks.size(); ++j)
      if (i != j &&
          (meet(tasks[i].output, tasks[i].output_bytes, tasks[j].input, tasks[j].input_bytes) ||
           meet(tasks[i].output, tasks[i].output_bytes, tasks[j].output, tasks[j].output_bytes)))
        return true;
  return false;
}

ncclResult_t launch(std::vector<Queued> all) {
  ncclResult_t result = ncclSuccess;
  for (Queued& one : all) {
    if (one.on->blocking() != all.front().on->blocking())
      return refused(ncclInvalidArgument,
                     "blocking and non-blocking communicators are not allowed in one group");
    if (one.tasks.size() > most_parts)
      return refused(ncclInvalidUsage, "too many calls in a group of the virtual NCCL");
    if (overlap(one.tasks))
      return refused(ncclInvalidUsage, "the buffers of two calls of a group overlap");
  }
  for (Queued& one : all)
    result = one.on->perform([one]() {
      one.on->queue(one.queue, one.tasks);
      return ncclSuccess;
    });
  return result;
}

ncclResult_t check_buffer(const Communicator& on, const Call& call, const void* data,
                          std::size_t bytes) {
  return bytes == 0 ? ncclSuccess : check_memory(shape(call.kind).call, on, data, bytes);
}

ncclResult_t check_call(Communicator& on, Task& task) {
  const Call& call = task.call;
  const Shape& how = shape(call.kind);
  if (const ncclResult_t ready = on.ready(); ready != ncclSuccess) return ready;
  if (call.type < 0 || call.type >= ncclNumTypes || call.op < 0 || call.op >= ncclNumOps)
    return refused(ncclInvalidArgument,
                   fmt::format("{}: type {} or operation {} is invalid", how.call,
                               static_cast<int>(call.type), static_cast<int>(call.op)));
  if (call.peer < 0 || call.peer >= on.size())
    return refused(ncclInvalidArgument, fmt::format("{}: rank is {}; expected 0 to {}", how.call,
                                                    call.peer, on.size() - 1));
  const bool small = call.type == ncclFloat8e4m3 || call.type == ncclFloat8e5m2;
  if (how.reduces && small && configuration().major < 9)
    return refused(ncclInvalidArgument, "FP8 reduction support begins with sm90 capable devices.");
  const std::size_t bytes = call.count * size_of(call.type);
  const auto ranks = static_cast<std::size_t>(on.size());
  const bool gives = call.kind != Kind::receive && call.gives(on.rank());
  const bool takes = call.kind != Kind::send && call.takes(on.rank());
  task.input_bytes = gives ? bytes * (how.of_own_share ? ranks : 1) : 0;
  task.output_bytes = takes ? bytes * (how.joined ? ranks : 1) : 0;
  if (call.kind == Kind::all_to_all && task.input == task.output && bytes > 0)
    return refused(ncclInvalidArgument, "ncclAlltoAll does not work in place");
  const ncclResult_t result = check_buffer(on, call, task.input, task.input_bytes);
  return result == ncclSuccess ? check_buffer(on, call, task.output, task.output_bytes) : result;
}

ncclResult_t call(Kind kind, const void* input, void* output, std::size_t count,
                  ncclDataType_t type, ncclRedOp_t op, int peer, ncclComm_t comm,
                  cudaStream_t stream) {
  const auto on = end_of(comm);
  if (!on) return ncclInvalidArgument;
  Task task{{kind, type, op, peer, count},
            static_cast<const std::byte*>(input),
            static_cast<std::byte*>(output),
            0,
            0,
            {}};
  ncclResult_t result = check_call(*on, task);
  const auto queue = queue_of(stream);
  if (result == ncclSuccess && (!queue || queue->device != on->device()))
    result = refused(ncclUnhandledCudaError, "the stream is not one of the communicator's device");
  if (result == ncclSuccess && may_queue(queue) != cudaSuccess)
    result = refused(ncclUnhandledCudaError, cudaGetErrorString(cudaGetLastError()));
  if (group.depth == 0)
    return result == ncclSuccess ? launch({{on, queue, {std::move(task)}}}) : result;
  if (result == ncclSuccess) {
    auto known = std::ranges::find(group.queued, on, &Queued::on);
    if (known == group.queued.end()) known = group.queued.insert(known, {on, queue, {}});
    if (known->queue == queue)
      known->tasks.push_back(std::move(task));
    else
      result = refused(ncclInvalidUsage, "a group of the virtual NCCL uses one stream only");
  }
  if (group.error == ncclSuccess) group.error = result;
  return result;
}

// Ranks of one GPU. 2.30 allows them only where NCCL_MULTI_RANK_GPU_ENABLE is set.
ncclResult_t check_devices(Communicator& on) {
  if (configuration().ranks_share_devices) return ncclSuccess;
  for (int rank = 0; rank < on.size(); ++rank)
    if (rank != on.rank() && on.of(rank).device == on.mine().device &&
        on.of(rank).host == on.mine().host)
      return refused(ncclInvalidUsage,
                     fmt::format("Duplicate GPU detected: rank {} and rank {} both on device {}",
                                 on.rank(), rank, on.mine().device));
  return ncclSuccess;
}

// Joins a communicator. A step of `perform` of *result, or of its parent. Like NCCL, sets *result
// at once in ncclCommInitRankConfig only.
ncclResult_t join(const ncclUniqueId& id, int size, int rank, bool blocking,
                  std::shared_ptr<Communicator>& result) {
  auto segment = open_segment(id);
  if (!segment) return refused(ncclSystemError, "no process waits for ranks with this id");
  std::uint32_t ranks = 0;
  if (!segment->ranks.compare_exchange_strong(ranks, static_cast<std::uint32_t>(size)) &&
      ranks != static_cast<std::uint32_t>(size))
    return refused(ncclInvalidArgument,
                   fmt::format("{} ranks, but {} at another rank", size, ranks));
  State absent = State::absent;
  if (!segment->all[rank].state.compare_exchange_strong(absent, State::joining))
    return refused(ncclInvalidUsage, fmt::format("two processes are rank {}", rank));
  result =
      std::make_shared<Communicator>(std::move(segment), size, rank, current_device(), blocking);
  result->mine().process = ::getpid();
  result->mine().device = on_host(current_device());
  result->mine().host = host_number();
  result->mine().state = State::joined;
  ++result->segment().joined;
  result->segment().ring();
  return ncclSuccess;
}

ncclResult_t joined(const std::shared_ptr<Communicator>& on, const ncclUniqueId& id) {
  // A rank that has aborted or ended counts only until all have joined: the others may be later.
  for (int rank = 0; on->segment().joined < on->segment().ranks && rank < on->size(); ++rank) {
    const ncclResult_t state = on->check_peer(rank);
    if (on->segment().joined == on->segment().ranks) break;  // just now; then it may have aborted
    if (state != ncclSuccess) return state;
    if (on->of(rank).state < State::joined)
      return refused(ncclInProgress, fmt::format("rank {} of {} has not joined", rank, on->size()));
  }
  if (on->segment().joined < on->segment().ranks) return ncclInProgress;
  if (on->rank() == 0) close_segment(id);
  const ncclResult_t result = check_devices(*on);
  if (result == ncclSuccess) std::thread([on] { on->serve(); }).detach();
  return result;
}

ncclResult_t check_config(const ncclConfig_t* config) {
  constexpr ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;
  if (config && config->magic != initial.magic)
    return refused(ncclInvalidArgument, "the configuration lacks NCCL_CONFIG_INITIALIZER");
  return ncclSuccess;
}

// ncclCommSplit, in steps: all ranks tell their colors; the first rank of each color makes the new
// segment; all join it.
struct Splitting {
  std::shared_ptr<Communicator> parent, child;
  std::uint32_t number;
  int color;
  bool blocking;
  ncclComm_t* handle;
  ncclUniqueId id{};

  ncclResult_t step() {
    if (!child) {
      std::vector<std::pair<int, int>> members;  // key and rank
      for (int rank = 0; rank < parent->size(); ++rank) {
        Rank& of = parent->of(rank);
        if (of.split < number) return waits_for(rank);
        const Rank::Split& told = of.splits[number % 2];
        if (told.color == color) members.emplace_back(told.key, rank);
      }
      if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
      std::ranges::sort(members);
      Rank& leader = parent->of(members.front().second);
      if (members.front().second == parent->rank() && leader.split_led < number) {
        if (!make_segment(leader.splits[number % 2].id)) return ncclSystemError;
        leader.split_led = number;
        parent->segment().ring();
      }
      if (leader.split_led < number) return waits_for(members.front().second);
      id = leader.splits[number % 2].id;
      const auto mine = std::ranges::find(members, parent->rank(), &std::pair<int, int>::second);
      const ncclResult_t result = join(id, static_cast<int>(members.size()),
                                       static_cast<int>(mine - members.begin()), blocking, child);
      if (result != ncclSuccess) return result;
    }
    const ncclResult_t result = joined(child, id);
    if (result == ncclSuccess) *handle = handle_of(child);
    return result;
  }
  ncclResult_t waits_for(int rank) {
    if (const ncclResult_t state = parent->check_peer(rank); state != ncclSuccess) return state;
    return refused(ncclInProgress, fmt::format("rank {} has not called ncclCommSplit", rank));
  }
};

// Waits for all queued operations, then for all ranks.
ncclResult_t finalize(Communicator& on) {
  if (!on.flush()) return refused(ncclInProgress, "operations are not complete");
  if (on.failed()) return refused(ncclRemoteError, on.error_text());
  if (on.mine().state < State::finalized) on.close(State::finalized);
  for (int rank = 0; rank < on.size(); ++rank) {
    if (on.of(rank).state == State::finalized) continue;
    const ncclResult_t state = on.check_peer(rank);
    if (on.of(rank).state == State::finalized) continue;  // just now; then it may have ended, too
    if (state != ncclSuccess) return state;
    return refused(ncclInProgress, fmt::format("rank {} has not called ncclCommFinalize", rank));
  }
  return ncclSuccess;
}

}  // namespace
}  // namespace machine::virtual_gpu::nccl

using namespace machine::virtual_gpu;
using namespace machine::virtual_gpu::nccl;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  constexpr const char* texts[] = {
      "no error",
      "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
      "unhandled system error (run with NCCL_DEBUG=INFO for details)",
      "internal error - please report this issue to the NCCL developers",
      "invalid argument (run with NCCL_DEBUG=WARN for details)",
      "invalid usage (run with NCCL_DEBUG=WARN for details)",
      "remote process exited or there was a network error",
      "NCCL operation in progress"};
  return result >= 0 && result < ncclNumResults ? texts[result] : "unknown result code";
}

const char* ncclGetLastError(ncclComm_t) { return last_text().c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (enter() != cudaSuccess) return ncclUnhandledCudaError;
  return make_segment(*id) ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  *comm = nullptr;
  if (enter() != cudaSuccess)
    return refused(ncclUnhandledCudaError, cudaGetErrorString(cudaPeekAtLastError()));
  if (const ncclResult_t result = check_config(config); result != ncclSuccess) return result;
  if (size < 1 || size > most_ranks || rank < 0 || rank >= size)
    return refused(ncclInvalidArgument, fmt::format("Invalid rank requested: {}/{}", rank, size));
  if (group.depth > 0)
    return refused(ncclInvalidUsage, "the virtual NCCL makes no communicator inside a group");
  std::shared_ptr<Communicator> on;
  const ncclResult_t result = join(id, size, rank, !config || config->blocking != 0, on);
  if (result != ncclSuccess) return result;
  *comm = handle_of(on);
  const ncclResult_t made =
      on->perform([on = on.get(), id] { return joined(on->shared_from_this(), id); });
  if (made != ncclSuccess && made != ncclInProgress) ncclCommAbort(std::exchange(*comm, nullptr));
  return made;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child,
                           ncclConfig_t* config) {
  *child = nullptr;
  const auto on = end_of(comm);
  if (!on) return ncclInvalidArgument;
  if (const ncclResult_t result = on->ready(); result != ncclSuccess) return result;
  if (const ncclResult_t result = check_config(config); result != ncclSuccess) return result;
  if (!on->flush())
    return refused(ncclInvalidUsage, "ncclCommSplit while operations are outstanding");
  Rank& mine = on->mine();
  const std::uint32_t number = mine.split + 1;
  mine.splits[number % 2] = {color, key, {}};
  mine.split = number;
  on->segment().ring();
  auto splitting = std::make_shared<Splitting>(Splitting{
      on, nullptr, number, color, config ? config->blocking != 0 : on->blocking(), child});
  const ncclResult_t result = on->perform([splitting] { return splitting->step(); });
  return result == ncclInProgress ? ncclSuccess : result;  // as NCCL 2.28's macros do
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const auto on = end_of(comm);
  if (!on) return ncclInvalidArgument;
  *state = on->state();
  if (on->failed()) refused(*state, on->error_text());
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const auto on = end_of(comm);
  if (!on) return ncclInvalidArgument;
  if (const ncclResult_t result = on->ready(); result != ncclSuccess) return result;
  return on->perform([on = on.get()] { return finalize(*on); });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const auto on = end_of(comm);
  if (!on) return ncclInvalidArgument;
  ncclResult_t result = on->ready();
  if (result == ncclSuccess && on->mine().state != State::finalized) {
    result = on->perform([on = on.get()] { return finalize(*on); });
    for (; result == ncclInProgress; result = on->state())
      machine::sleep_on(on->segment().bell, on->segment().bell, 0.001);
  }
  if (result == ncclSuccess) forget(comm);
  return result;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  const auto on = end_of(comm);
  if (!on) return ncclInvalidArgument;
  on->close(State::aborted);
  forget(comm);
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) return refused(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--group.depth > 0) return ncclSuccess;
  const auto queued = std::exchange(group.queued, {});
  const ncclResult_t error = std::exchange(group.error, ncclSuccess);
  return error != ncclSuccess || queued.empty() ? error : launch(queued);
}

ncclResult_t ncclAllReduce(const void* input, void* output, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  ++counts.nccl_all_reduces;
  return call(Kind::all_reduce, input, output, count, type, op, 0, comm, stream);
}
ncclResult_t ncclBroadcast(const void* input, void* output, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return call(Kind::broadcast, input, output, count, type, ncclSum, root, comm, stream);
}
ncclResult_t ncclReduce(const void* input, void* output, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return call(Kind::reduce, input, output, count, type, op, root, comm, stream);
}
ncclResult_t ncclAllGather(const void* input, void* output, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  ++counts.nccl_all_gathers;
  return call(Kind::all_gather, input, output, count, type, ncclSum, 0, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* input, void* output, std::size_t count,
                               ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  ++counts.nccl_reduce_scatters;
  return call(Kind::reduce_scatter, input, output, count, type, op, 0, comm, stream);
}
#if NCCL_VERSION_CODE >= 22800
ncclResult_t ncclAlltoAll(const void* input, void* output, std::size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t stream) {
  return call(Kind::all_to_all, input, output, count, type, ncclSum, 0, comm, stream);
}
ncclResult_t ncclGather(const void* input, void* output, std::size_t count, ncclDataType_t type,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  return call(Kind::gather, input, output, count, type, ncclSum, root, comm, stream);
}
ncclResult_t ncclScatter(const void* input, void* output, std::size_t count, ncclDataType_t type,
                         int root, ncclComm_t comm, cudaStream_t stream) {
  return call(Kind::scatter, input, output, count, type, ncclSum, root, comm, stream);
}
#endif
ncclResult_t ncclSend(const void* input, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  ++counts.nccl_sends;
  return call(Kind::send, input, nullptr, count, type, ncclSum, peer, comm, stream);
}
ncclResult_t ncclRecv(void* output, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return call(Kind::receive, nullptr, output, count, type, ncclSum, peer, comm, stream);
}
}
