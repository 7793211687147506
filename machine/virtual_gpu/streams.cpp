#include "machine/virtual_gpu/streams.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "machine/virtual_gpu/configuration.h"
#include "machine/virtual_gpu/errors.h"
#include "machine/virtual_gpu/graphs.h"
#include "machine/virtual_gpu/memory.h"

// The handles of the runtime.
struct CUstream_st {
  std::shared_ptr<machine::virtual_gpu::Queue> queue;
};
struct CUevent_st {
  std::shared_ptr<machine::virtual_gpu::Event> event;
};

namespace machine::virtual_gpu {
namespace {

using Lock = std::unique_lock<std::mutex>;

enum class Effort {
  needed,     // waits for other threads and processes
  served,     // for another process: does not wait for a process
  voluntary,  // also skips operations that may wait for the host
};

struct Scheduler {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::weak_ptr<Queue>> queues;
  std::map<int, std::shared_ptr<Queue>> legacy;  // by device: the default stream
  std::set<cudaStream_t> streams;
  std::set<cudaEvent_t> events;

  std::shared_ptr<Queue> make(int device, bool blocking) {
    auto queue = std::make_shared<Queue>();
    queue->device = device;
    queue->blocking = blocking;
    std::erase_if(queues, [](const auto& old) { return old.expired(); });
    queues.push_back(queue);
    if (configuration().order == Order::eager)
      std::thread([this, queue] { serve(*queue); }).detach();
    return queue;
  }
  std::vector<std::shared_ptr<Queue>> live(int device = -1) {
    std::vector<std::shared_ptr<Queue>> result;
    for (const auto& weak : queues)
      if (auto queue = weak.lock(); queue && (device < 0 || queue->device == device))
        result.push_back(std::move(queue));
    return result;
  }
  bool advance(Lock& lock, Queue& queue, std::uint64_t number, Effort effort);
  void run_others(Lock& lock);
  void serve(Queue& queue);
};

Scheduler& scheduler() {
  static Scheduler& of_process = *new Scheduler;  // threads may use it until the process ends
  return of_process;
}

// Runs a queue until `number` operations are done. Returns false if the effort does not allow it.
bool Scheduler::advance(Lock& lock, Queue& queue, std::uint64_t number, Effort effort) {
  while (queue.done < number) {
    if (queue.running) {
      if (effort != Effort::needed) return false;
      changed.wait(lock);
      continue;
    }
    Operation& next = queue.pending.front();
    if (const Point after = next.after; after.queue && after.queue->done < after.number) {
      if (!advance(lock, *after.queue, after.number, effort)) return false;
      continue;
    }
    if (effort == Effort::voluntary && next.may_hold) return false;
    if (const auto remote = next.remote; remote && !remote->reached()) {
      if (effort != Effort::needed) {
        remote->request();
        return false;
      }
      queue.running = true;
      lock.unlock();
      remote->wait();
      lock.lock();
      queue.running = false;
      changed.notify_all();
      continue;
    }
    queue.running = true;
    const auto run = std::move(next.run);
    lock.unlock();
    if (run && sticky_error(queue.device) == cudaSuccess) run();
    lock.lock();
    queue.running = false;
    queue.pending.pop_front();
    ++queue.done;
    changed.notify_all();
  }
  return true;
}

// Runs single operations of any queues, a number of them by chance.
void Scheduler::run_others(Lock& lock) {
  while (random_number() % 3 != 0) {
    const auto queues = live();
    if (queues.empty()) return;
    Queue& queue = *queues[random_number() % queues.size()];
    if (!queue.pending.empty()) advance(lock, queue, queue.done + 1, Effort::voluntary);
  }
}

// Runs on the thread of one queue, in the order eager.
void Scheduler::serve(Queue& queue) {
  Lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return queue.closed || !queue.pending.empty(); });
    if (queue.pending.empty()) return;
    const std::uint64_t number = queue.done + 1;  // another thread may run it first
    lock.unlock();
    {
      const Access access;
      lock.lock();
      advance(lock, queue, number, Effort::needed);
      lock.unlock();
    }
    lock.lock();
  }
}

Point append_locked(const std::shared_ptr<Queue>& queue, Operation operation) {
  queue->pending.push_back(std::move(operation));
  return {queue, ++queue->queued};
}

// The legacy default stream waits for all blocking streams, and they wait for it.
void order_with_legacy(Scheduler& all, const std::shared_ptr<Queue>& queue) {
  const auto legacy = all.legacy.find(queue->device);
  if (legacy == all.legacy.end()) return;
  if (queue == legacy->second) {
    for (const auto& other : all.live(queue->device))
      if (other != queue && other->blocking && other->done < other->queued)
        append_locked(queue, {{other, other->queued}, nullptr, nullptr});
  } else if (queue->blocking && legacy->second->done < legacy->second->queued) {
    append_locked(queue, {{legacy->second, legacy->second->queued}, nullptr, nullptr});
  }
}

}  // namespace

std::shared_ptr<Queue> queue_of(cudaStream_t stream) {
  Scheduler& all = scheduler();
  const std::lock_guard lock(all.mutex);
  if (stream == nullptr || stream == cudaStreamLegacy) {
    auto& legacy = all.legacy[current_device()];
    if (!legacy) legacy = all.make(current_device(), false);
    return legacy;
  }
  if (all.streams.contains(stream)) return stream->queue;
  failed(cudaErrorInvalidResourceHandle, "not a stream, or a destroyed one");
  return nullptr;
}

Point append(const std::shared_ptr<Queue>& queue, Operation operation) {
  if (is_captured(queue) &&
      capture(queue, [operation](const auto& launched) { append(launched, operation); }))
    return {};
  Scheduler& all = scheduler();
  std::uint64_t oldest = 0;
  Point end;
  {
    const std::lock_guard lock(all.mutex);
    order_with_legacy(all, queue);
    end = append_locked(queue, std::move(operation));
    if (end.number > most_pending) oldest = end.number - most_pending;
    if (configuration().order == Order::eager) all.changed.notify_all();
  }
  if (oldest > 0) run_until({queue, oldest});
  return end;
}

Point end_of(const std::shared_ptr<Queue>& queue) {
  const std::lock_guard lock(scheduler().mutex);
  return {queue, queue->queued};
}

bool is_done(const Point& point) {
  const std::lock_guard lock(scheduler().mutex);
  return !point.queue || point.queue->done >= point.number;
}

void run_until(const Point& point) {
  Scheduler& all = scheduler();
  if (is_done(point)) return;
  const Access access;
  Lock lock(all.mutex);
  if (configuration().order == Order::random) all.run_others(lock);
  all.advance(lock, *point.queue, point.number, Effort::needed);
  if (configuration().order == Order::random) all.run_others(lock);
}

bool try_until(const Point& point) {
  if (is_done(point)) return true;
  const Access access;
  Lock lock(scheduler().mutex);
  return scheduler().advance(lock, *point.queue, point.number, Effort::served);
}

void run_device(int device) {
  std::vector<Point> ends;
  {
    const std::lock_guard lock(scheduler().mutex);
    for (const auto& queue : scheduler().live(device)) ends.push_back({queue, queue->queued});
  }
  for (const Point& end : ends) run_until(end);
}

std::shared_ptr<Event> event_of(cudaEvent_t event) {
  const std::lock_guard lock(scheduler().mutex);
  if (scheduler().events.contains(event)) return event->event;
  failed(cudaErrorInvalidResourceHandle, "not an event, or a destroyed one");
  return nullptr;
}

cudaEvent_t publish(std::shared_ptr<Event> event) {
  const std::lock_guard lock(scheduler().mutex);
  return *scheduler().events.insert(new CUevent_st{std::move(event)}).first;
}

bool forget(cudaEvent_t event) {
  const std::lock_guard lock(scheduler().mutex);
  if (scheduler().events.erase(event) == 0) return false;
  delete event;
  return true;
}

}  // namespace machine::virtual_gpu

using namespace machine::virtual_gpu;

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  VIRTUAL_GPU_ENTER;
  const std::lock_guard lock(scheduler().mutex);
  const bool blocking = (flags & cudaStreamNonBlocking) == 0;
  *stream = new CUstream_st{scheduler().make(current_device(), blocking)};
  scheduler().streams.insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

// Its queued work still runs.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  VIRTUAL_GPU_ENTER_TO_RELEASE;
  const auto queue = stream ? queue_of(stream) : nullptr;
  if (!queue) return cudaErrorInvalidResourceHandle;
  VIRTUAL_GPU_CHECK_CAPTURE(may_wait(queue));
  run_until(end_of(queue));
  const std::lock_guard lock(scheduler().mutex);
  queue->closed = true;
  scheduler().changed.notify_all();
  scheduler().streams.erase(stream);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  VIRTUAL_GPU_ENTER;
  const auto queue = queue_of(stream);
  if (!queue) return cudaErrorInvalidResourceHandle;
  VIRTUAL_GPU_CHECK_CAPTURE(may_wait(queue));
  run_until(end_of(queue));
  return failed_device(queue->device);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  VIRTUAL_GPU_ENTER;
  const auto queue = queue_of(stream);
  if (!queue) return cudaErrorInvalidResourceHandle;
  VIRTUAL_GPU_CHECK_CAPTURE(may_wait(queue));
  return is_done(end_of(queue)) ? cudaSuccess : cudaErrorNotReady;
}
}
