// The functions of the runtime for events.

#include <fmt/format.h>

#include <chrono>

#include "machine/virtual_gpu/errors.h"
#include "machine/virtual_gpu/graphs.h"
#include "machine/virtual_gpu/ipc.h"
#include "machine/virtual_gpu/streams.h"

namespace machine::virtual_gpu {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void reach(Event& event, std::uint32_t number) {
  const std::lock_guard lock(event.mutex);
  if (number <= event.reached) return;
  event.reached = number;
  event.seconds = now();
  if (event.slot) event.slot->reach(number);
  while (!event.unreached.empty() && event.unreached.front().first <= number)
    event.unreached.pop_front();
}

// Returns the last record. Other threads may record at the same time.
Point last_point(Event& event) {
  const std::lock_guard lock(event.mutex);
  return event.recorded;
}

}  // namespace
}  // namespace machine::virtual_gpu

using namespace machine::virtual_gpu;

extern "C" {

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  VIRTUAL_GPU_ENTER;
  const bool timed = (flags & cudaEventDisableTiming) == 0;
  const bool interprocess = (flags & cudaEventInterprocess) != 0;
  if (interprocess && timed)
    return failed(cudaErrorInvalidValue, "cudaEventInterprocess requires cudaEventDisableTiming");
  auto state = std::make_shared<Event>();
  state->device = current_device();
  state->timed = timed;
  state->interprocess = interprocess;
  *event = publish(std::move(state));
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

// Work that was queued before the record still runs.
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  VIRTUAL_GPU_ENTER_TO_RELEASE;
  if (!forget(event)) return failed(cudaErrorInvalidResourceHandle, "not an event");
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  VIRTUAL_GPU_ENTER;
  const auto state = event_of(event);
  const auto queue = queue_of(stream);
  if (!state || !queue) return cudaErrorInvalidResourceHandle;
  if (state->device != queue->device)
    return failed(cudaErrorInvalidResourceHandle,
                  fmt::format("an event of device {} in a stream of device {}", state->device,
                              queue->device));
  if (state->opened)
    return failed(cudaErrorNotSupported, "the virtual GPU records no event of another process");
  VIRTUAL_GPU_CHECK_CAPTURE(may_queue(queue));
  if (const auto captured = capture_record(queue, state)) return *captured;
  std::uint32_t number = 0;
  {
    const std::lock_guard lock(state->mutex);
    number = ++state->records;
  }
  Operation record;
  record.run = [state, number] { reach(*state, number); };
  const Point end = append(queue, std::move(record));
  const std::lock_guard lock(state->mutex);
  state->recorded = end;
  if (!state->slot) return cudaSuccess;
  if (state->reached < number) state->unreached.emplace_back(number, end);
  state->slot->record(number);
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  VIRTUAL_GPU_ENTER;
  const auto state = event_of(event);
  if (!state) return cudaErrorInvalidResourceHandle;
  VIRTUAL_GPU_CHECK_CAPTURE(may_wait(state));
  if (state->opened) {
    if (const auto record = last_record(state->slot)) record->wait();
  } else {
    run_until(last_point(*state));
  }
  return failed_device(state->device);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  VIRTUAL_GPU_ENTER;
  const auto state = event_of(event);
  if (!state) return cudaErrorInvalidResourceHandle;
  VIRTUAL_GPU_CHECK_CAPTURE(may_wait(state));
  if (state->opened) {
    const auto record = last_record(state->slot);
    return !record || record->reached() ? cudaSuccess : cudaErrorNotReady;
  }
  return is_done(last_point(*state)) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  VIRTUAL_GPU_ENTER;
  double seconds[2];
  const cudaEvent_t events[] = {start, end};
  for (int i = 0; i < 2; ++i) {
    const auto state = event_of(events[i]);
    if (!state) return cudaErrorInvalidResourceHandle;
    VIRTUAL_GPU_CHECK_CAPTURE(may_wait(state));
    const std::lock_guard lock(state->mutex);
    if (!state->timed || !state->recorded.queue)
      return failed(cudaErrorInvalidResourceHandle,
                    state->timed ? "an event was not recorded" : "an event has no timing");
    if (state->reached < state->records)
      return failed(cudaErrorNotReady, "an event was not reached");
    seconds[i] = state->seconds;
  }
  *milliseconds = static_cast<float>((seconds[1] - seconds[0]) * 1e3);
  return cudaSuccess;
}

// Later records of the event do not change the wait.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int /*flags*/) {
  VIRTUAL_GPU_ENTER;
  const auto queue = queue_of(stream);
  const auto state = event_of(event);
  if (!state || !queue) return cudaErrorInvalidResourceHandle;
  if (const auto captured = capture_wait(queue, state)) return *captured;
  VIRTUAL_GPU_CHECK_CAPTURE(may_queue(queue));
  Operation wait;
  if (state->opened) {
    wait.remote = last_record(state->slot);
    if (!wait.remote) return cudaSuccess;
  } else {
    wait.after = last_point(*state);
    if (!wait.after.queue) return cudaSuccess;
  }
  append(queue, std::move(wait));
  return cudaSuccess;
}
}
