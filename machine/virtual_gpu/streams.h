#pragma once
// Streams and events. A stream is a queue of operations. A wait for a point of a queue runs it up
// to there, and what it depends on, in the thread that waits. Other work stays queued, except in
// the orders random and eager (configuration.h).

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace machine::virtual_gpu {

struct Queue;

// The end of the first `number` operations of a queue.
struct Point {
  std::shared_ptr<Queue> queue;
  std::uint64_t number = 0;
};

// A point that another process reaches.
class RemotePoint {
 public:
  virtual ~RemotePoint() = default;
  virtual bool reached() = 0;
  virtual void request() = 0;  // asks the other process to run up to there
  virtual void wait() = 0;     // requests it and waits for it
};

struct Operation {
  Point after;                          // runs after this point, if it has a queue
  std::shared_ptr<RemotePoint> remote;  // and after this one
  std::function<void()> run;            // may be empty
  // May wait for the host: runs only if a wait requires it.
  bool may_hold = false;
};

struct Queue {
  int device = 0;
  bool blocking = false;  // ordered with the legacy default stream
  std::deque<Operation> pending;
  std::uint64_t queued = 0, done = 0;  // numbers of operations
  bool running = false, closed = false;
};

// Operations of a stream that are queued and not done. A launch beyond it waits.
inline constexpr std::size_t most_pending = 1024;

// Returns the queue of a stream of the runtime, or null with the error set.
std::shared_ptr<Queue> queue_of(cudaStream_t stream);

// Appends an operation and returns its end.
Point append(const std::shared_ptr<Queue>& queue, Operation operation);
Point end_of(const std::shared_ptr<Queue>& queue);

bool is_done(const Point& point);
void run_until(const Point& point);
// Runs what it can without waiting for another process. Returns whether the point is reached.
bool try_until(const Point& point);
// Runs all work of a device.
void run_device(int device);

class SharedSlot;
// The state of an event.
struct Event {
  std::mutex mutex;  // of the fields below
  int device = 0;
  bool timed = true, interprocess = false;
  bool opened = false;               // an event of another process: only `slot` is used
  Point recorded;                    // the last record; no queue: never recorded
  std::uint32_t records = 0;         // number of records
  std::uint32_t reached = 0;         // number of the last record that was reached
  double seconds = 0;                // its time
  std::shared_ptr<SharedSlot> slot;  // if other processes see the event
  std::deque<std::pair<std::uint32_t, Point>> unreached;  // of such an event: its records
};
// Returns null, with the error set, if the handle is not a live event.
std::shared_ptr<Event> event_of(cudaEvent_t event);
cudaEvent_t publish(std::shared_ptr<Event> event);
bool forget(cudaEvent_t event);

}  // namespace machine::virtual_gpu
