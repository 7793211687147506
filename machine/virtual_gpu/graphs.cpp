#include "machine/virtual_gpu/graphs.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "machine/virtual_gpu/errors.h"

namespace machine::virtual_gpu {
namespace {

// By lane: a number of its operations, counted from the first.
using Clock = std::vector<std::size_t>;

std::size_t at(const Clock& clock, std::size_t lane) {
  return lane < clock.size() ? clock[lane] : 0;
}
void join(Clock& clock, const Clock& other) {
  clock.resize(std::max(clock.size(), other.size()));
  for (std::size_t lane = 0; lane < other.size(); ++lane)
    clock[lane] = std::max(clock[lane], other[lane]);
}

struct Step {
  std::size_t lane;
  Again again;  // empty: the lane waits
  Clock after;  // for these operations of other lanes
};

struct Recipe {
  std::vector<int> devices;  // by lane
  std::vector<Step> steps;   // in the order of the calls
};

struct Capture {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  std::vector<std::shared_ptr<Queue>> lanes;  // the first is the stream of cudaStreamBeginCapture
  std::vector<Clock> clocks;                  // by lane: the operations before its next one
  Recipe recipe;
  bool valid = true, active = true;

  void add_lane(const std::shared_ptr<Queue>& queue) {
    lanes.push_back(queue);
    clocks.emplace_back(lanes.size());
    recipe.devices.push_back(queue->device);
  }
  std::size_t lane_of(const Queue& queue) const {
    return static_cast<std::size_t>(std::ranges::find(lanes, &queue, &std::shared_ptr<Queue>::get) -
                                    lanes.begin());
  }
  bool holds(const Queue& queue) const { return lane_of(queue) < lanes.size(); }
};

// A record of an event in a captured stream.
struct Recorded {
  std::weak_ptr<Event> event;
  std::shared_ptr<Capture> capture;
  Clock clock;
};

struct Captures {
  std::atomic<bool> used{false};  // a capture was begun
  std::mutex mutex;               // of the fields below
  std::vector<std::shared_ptr<Capture>> active;
  std::map<const Event*, Recorded> events;
  std::set<cudaGraph_t> graphs;
  std::set<cudaGraphExec_t> executables;

  std::shared_ptr<Capture> of(const Queue& queue) const {
    for (const auto& capture : active)
      if (capture->holds(queue)) return capture;
    return nullptr;
  }
  const Recorded* of(const Event& event) {
    const auto found = events.find(&event);
    if (found == events.end()) return nullptr;
    if (!found->second.event.expired()) return &found->second;
    events.erase(found);  // another event had this address
    return nullptr;
  }
};
Captures& all() {
  static Captures& of_process = *new Captures;  // threads may use it until the process ends
  return of_process;
}

cudaError_t illegal(Capture& capture, cudaError_t status, std::string text) {
  capture.valid = false;
  return failed(status, std::move(text));
}

bool is_legacy(const std::shared_ptr<Queue>& queue) {
  return !queue->blocking && queue->device == current_device() && queue == queue_of(nullptr);
}

// The legacy default stream waits for blocking streams, also for captured ones.
cudaError_t check_legacy(const std::shared_ptr<Queue>& queue) {
  if (all().active.empty() || !is_legacy(queue)) return cudaSuccess;
  cudaError_t result = cudaSuccess;
  for (const auto& capture : all().active)
    for (const auto& lane : capture->lanes)
      if (lane->blocking && lane->device == queue->device)
        result = illegal(*capture, cudaErrorStreamCaptureImplicit,
                         "the legacy default stream is used while a blocking stream is captured");
  return result;
}

// Of the calling thread (cudaThreadExchangeStreamCaptureMode).
thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;

cudaError_t invalidated() {
  return failed(cudaErrorStreamCaptureInvalidated, "an earlier call was not allowed");
}

}  // namespace

bool is_captured(const std::shared_ptr<Queue>& queue) {
  if (!all().used) return false;
  const std::lock_guard lock(all().mutex);
  return all().of(*queue) != nullptr;
}

bool capture(const std::shared_ptr<Queue>& queue, Again again) {
  if (!all().used) return false;
  const std::lock_guard lock(all().mutex);
  const auto into = all().of(*queue);
  if (!into) return false;
  if (!into->valid) {
    invalidated();
    return true;
  }
  const std::size_t lane = into->lane_of(*queue);
  into->recipe.steps.push_back({lane, std::move(again), {}});
  ++into->clocks[lane][lane];
  return true;
}

std::optional<cudaError_t> capture_record(const std::shared_ptr<Queue>& queue,
                                          const std::shared_ptr<Event>& event) {
  if (!all().used) return std::nullopt;
  const std::lock_guard lock(all().mutex);
  all().events.erase(event.get());
  const auto into = all().of(*queue);
  if (!into) return std::nullopt;
  if (event->interprocess)
    return illegal(*into, cudaErrorStreamCaptureUnsupported, "a record of an interprocess event");
  all().events[event.get()] = {event, into, into->clocks[into->lane_of(*queue)]};
  return cudaSuccess;
}

std::optional<cudaError_t> capture_wait(const std::shared_ptr<Queue>& queue,
                                        const std::shared_ptr<Event>& event) {
  if (!all().used) return std::nullopt;
  const std::lock_guard lock(all().mutex);
  const Recorded* recorded = all().of(*event);
  const auto into = all().of(*queue);
  if (!recorded) {
    if (!into) return std::nullopt;
    if (!event->opened && !event->recorded.queue) return cudaSuccess;  // never recorded
    return illegal(*into, cudaErrorStreamCaptureIsolation,
                   "a captured stream waits for an event that was recorded outside of the capture");
  }
  Capture& from = *recorded->capture;
  if (!from.active) {
    if (into) into->valid = false;
    return failed(cudaErrorCapturedEvent, "the event was recorded in a capture that has ended");
  }
  if (into && into != recorded->capture) {
    into->valid = false;
    return illegal(from, cudaErrorStreamCaptureMerge, "a wait would join two captures");
  }
  if (!from.valid) return invalidated();
  if (!into) {
    if (is_legacy(queue))
      return illegal(from, cudaErrorStreamCaptureUnsupported,
                     "the legacy default stream cannot be captured");
    from.add_lane(queue);
  }
  const std::size_t lane = from.lane_of(*queue);
  from.recipe.steps.push_back({lane, nullptr, recorded->clock});
  join(from.clocks[lane], recorded->clock);
  return cudaSuccess;
}

cudaError_t may_queue(const std::shared_ptr<Queue>& queue) {
  if (!all().used) return cudaSuccess;
  const std::lock_guard lock(all().mutex);
  if (const auto into = all().of(*queue); into && !into->valid) return invalidated();
  return check_legacy(queue);
}

cudaError_t may_wait(const std::shared_ptr<Queue>& queue) {
  if (!all().used) return cudaSuccess;
  const std::lock_guard lock(all().mutex);
  const auto into = all().of(*queue);
  if (!into) return check_legacy(queue);
  if (!into->valid) return invalidated();
  return illegal(*into, cudaErrorStreamCaptureUnsupported, "the stream is captured");
}

cudaError_t may_wait(const std::shared_ptr<Event>& event) {
  if (!all().used) return cudaSuccess;
  const std::lock_guard lock(all().mutex);
  const Recorded* recorded = all().of(*event);
  if (!recorded) return cudaSuccess;
  return illegal(*recorded->capture, cudaErrorCapturedEvent, "");
}

cudaError_t may_wait_for_device(int device) {
  if (!all().used) return cudaSuccess;
  const std::lock_guard lock(all().mutex);
  cudaError_t result = cudaSuccess;
  for (const auto& capture : all().active)
    if (std::ranges::count(capture->recipe.devices, device) > 0)
      result = illegal(*capture, cudaErrorStreamCaptureUnsupported,
                       "a stream of the device is captured");
  return result;
}

cudaError_t may_call_unsafe() {
  if (!all().used || mode_of_thread == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  const std::lock_guard lock(all().mutex);
  cudaError_t result = cudaSuccess;
  for (const auto& capture : all().active)
    if ((capture->mode == cudaStreamCaptureModeGlobal &&
         mode_of_thread == cudaStreamCaptureModeGlobal) ||
        (capture->mode != cudaStreamCaptureModeRelaxed &&
         capture->thread == std::this_thread::get_id()))
      result = illegal(*capture, cudaErrorStreamCaptureUnsupported,
                       "the mode of the capture does not allow calls that may wait for the device");
  return result;
}

}  // namespace machine::virtual_gpu

using namespace machine::virtual_gpu;

// The handles of the runtime.
struct CUgraph_st {
  Recipe recipe;
};
struct CUgraphExec_st {
  std::mutex mutex;  // of the fields below
  Recipe recipe;
  std::vector<cudaStream_t> streams;           // of the lanes after the first
  std::vector<std::shared_ptr<Queue>> queues;  // theirs
  Point last;                                  // the end of the last launch
};

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  VIRTUAL_GPU_ENTER;
  const auto queue = queue_of(stream);
  if (!queue) return cudaErrorInvalidResourceHandle;
  if (stream == nullptr || stream == cudaStreamLegacy)
    return failed(cudaErrorStreamCaptureUnsupported,
                  "the legacy default stream cannot be captured");
  const std::lock_guard lock(all().mutex);
  if (all().of(*queue)) return failed(cudaErrorIllegalState, "the stream is captured already");
  auto begun = std::make_shared<Capture>();
  begun->mode = mode;
  begun->thread = std::this_thread::get_id();
  begun->add_lane(queue);
  all().active.push_back(std::move(begun));
  all().used = true;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, mode_of_thread);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  VIRTUAL_GPU_ENTER;
  const auto queue = queue_of(stream);
  if (!queue) return cudaErrorInvalidResourceHandle;
  const std::lock_guard lock(all().mutex);
  const auto into = all().of(*queue);
  *status = !into         ? cudaStreamCaptureStatusNone
            : into->valid ? cudaStreamCaptureStatusActive
                          : cudaStreamCaptureStatusInvalidated;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  VIRTUAL_GPU_ENTER_TO_RELEASE;
  *graph = nullptr;
  const auto queue = queue_of(stream);
  if (!queue) return cudaErrorInvalidResourceHandle;
  const std::lock_guard lock(all().mutex);
  const auto ended = all().of(*queue);
  if (!ended) return failed(cudaErrorInvalidValue, "the stream is not captured");
  if (ended->lanes.front() != queue)
    return illegal(*ended, cudaErrorStreamCaptureUnmatched, "the capture began in another stream");
  if (ended->mode != cudaStreamCaptureModeRelaxed && ended->thread != std::this_thread::get_id())
    return failed(cudaErrorStreamCaptureWrongThread, "the capture began in another thread");
  ended->active = false;
  std::erase(all().active, ended);
  std::erase_if(all().events, [](const auto& known) { return known.second.event.expired(); });
  if (!ended->valid) return invalidated();
  for (std::size_t lane = 1; lane < ended->lanes.size(); ++lane)
    if (at(ended->clocks[0], lane) < ended->clocks[lane][lane])
      return failed(cudaErrorStreamCaptureUnjoined,
                    "the first stream does not wait for all work of a stream that joined the "
                    "capture");
  *graph = *all().graphs.insert(new CUgraph_st{std::move(ended->recipe)}).first;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                          unsigned long long /*flags*/) {
  VIRTUAL_GPU_ENTER;
  auto made = std::make_unique<CUgraphExec_st>();
  {
    const std::lock_guard lock(all().mutex);
    if (!all().graphs.contains(graph)) return failed(cudaErrorInvalidValue, "not a graph");
    made->recipe = graph->recipe;
  }
  const int device = current_device();
  for (std::size_t lane = 1; lane < made->recipe.devices.size(); ++lane) {
    set_current_device(made->recipe.devices[lane]);
    cudaStream_t stream = nullptr;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    made->streams.push_back(stream);
    made->queues.push_back(queue_of(stream));
  }
  set_current_device(device);
  const std::lock_guard lock(all().mutex);
  *executable = *all().executables.insert(made.release()).first;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(executable, graph, flags);
}

// A launch waits for the last launch of the same graph.
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  VIRTUAL_GPU_ENTER;
  const auto first = queue_of(stream);
  if (!first) return cudaErrorInvalidResourceHandle;
  {
    const std::lock_guard lock(all().mutex);
    if (!all().executables.contains(executable))
      return failed(cudaErrorInvalidValue, "not an executable graph");
    if (const auto into = all().of(*first))
      return illegal(*into, cudaErrorNotSupported, "the virtual GPU has no graphs in graphs");
  }
  VIRTUAL_GPU_CHECK_CAPTURE(may_queue(first));
  const std::lock_guard lock(executable->mutex);
  if (executable->last.queue && executable->last.queue != first)
    append(first, {executable->last, nullptr, nullptr});
  const Point begin = end_of(first);
  std::vector<std::shared_ptr<Queue>> lanes{first};
  for (const auto& queue : executable->queues) {
    append(queue, {begin, nullptr, nullptr});
    lanes.push_back(queue);
  }
  std::vector<std::vector<Point>> ends(lanes.size());  // by lane, of its operations
  for (const Step& step : executable->recipe.steps) {
    const auto& lane = lanes[step.lane];
    if (step.again) {
      step.again(lane);
      ends[step.lane].push_back(end_of(lane));
      continue;
    }
    for (std::size_t other = 0; other < step.after.size(); ++other)
      if (const std::size_t number = step.after[other]; number > 0 && other != step.lane)
        append(lane, {ends[other][number - 1], nullptr, nullptr});
  }
  executable->last = end_of(first);
  return cudaSuccess;
}

// Work that was launched still runs.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  VIRTUAL_GPU_ENTER_TO_RELEASE;
  {
    const std::lock_guard lock(all().mutex);
    if (all().executables.erase(executable) == 0)
      return failed(cudaErrorInvalidValue, "not an executable graph");
  }
  for (cudaStream_t stream : executable->streams) cudaStreamDestroy(stream);
  delete executable;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  VIRTUAL_GPU_ENTER_TO_RELEASE;
  const std::lock_guard lock(all().mutex);
  if (all().graphs.erase(graph) == 0) return failed(cudaErrorInvalidValue, "not a graph");
  delete graph;
  return cudaSuccess;
}
}
