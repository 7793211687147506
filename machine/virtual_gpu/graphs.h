#pragma once
// Graphs: streams that are captured, and their launches (CUDA C++ Programming Guide, "Creating a
// Graph Using Stream Capture"; CUDA Runtime API, "Stream Management", "Graph Management").
//
// A captured stream is a lane of the graph. Its operations are kept, not run. A launch queues them
// again: the first lane in the stream of the launch, each other lane in a queue of its own. Lanes
// are ordered only by the waits that were captured, so the orders of streams (configuration.h) are
// also those of a graph. A call that a capture does not allow fails and invalidates the capture.

#include <functional>
#include <memory>
#include <optional>

#include "machine/virtual_gpu/streams.h"

namespace machine::virtual_gpu {

// Queues a captured operation, once for each launch.
using Again = std::function<void(const std::shared_ptr<Queue>&)>;

bool is_captured(const std::shared_ptr<Queue>& queue);
// If the queue is captured, keeps the operation and returns true.
bool capture(const std::shared_ptr<Queue>& queue, Again again);
// If the queue is captured, makes the event a point of the capture and returns the result of the
// record. Else the event is no longer captured.
std::optional<cudaError_t> capture_record(const std::shared_ptr<Queue>& queue,
                                          const std::shared_ptr<Event>& event);
// Returns the result of a wait for an event if the queue or the event is captured. The wait makes a
// stream part of the event's capture.
std::optional<cudaError_t> capture_wait(const std::shared_ptr<Queue>& queue,
                                        const std::shared_ptr<Event>& event);

// These return an error, and invalidate the capture, if a capture does not allow the call.
cudaError_t may_queue(const std::shared_ptr<Queue>& queue);
cudaError_t may_wait(const std::shared_ptr<Queue>& queue);  // also to query and destroy
cudaError_t may_wait(const std::shared_ptr<Event>& event);
cudaError_t may_wait_for_device(int device);
// For calls that may wait for the device: allocating and freeing memory. Whether they are allowed
// depends on the mode of the capture.
cudaError_t may_call_unsafe();

}  // namespace machine::virtual_gpu

// Returns from a function of the runtime if a capture does not allow the call.
#define VIRTUAL_GPU_CHECK_CAPTURE(check) \
  if (const cudaError_t captured_ = (check); captured_ != cudaSuccess) return captured_
