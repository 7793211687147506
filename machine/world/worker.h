#pragma once
// Runs jobs one after the other in the order of submit, on its own thread or inside submit. The
// jobs, their order and all bits are the same in both modes.
//
// Only the submitting thread allocates and frees memory (a device's ledger belongs to one thread).
// The caller keeps the memory that a job uses until wait has returned for it.
//
// After an exception of a job no other job runs, and all later calls of submit and wait rethrow it.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "machine/world/step_clock.h"

namespace machine {

class Worker {
 public:
  using Ticket = std::uint64_t;

  // For a step clock: the thread's lane, and the part to which a wait for it counts.
  struct Recorded {
    const char* lane = "progress";
    Part waiting = Part::communication;
    const char* group = "dp";
  };

  explicit Worker(bool own_thread, Recorded recorded);
  explicit Worker(bool own_thread) : Worker(own_thread, Recorded()) {}
  ~Worker() { stop(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  Ticket submit(std::function<void()> job);
  void wait(Ticket ticket);  // until this job and all earlier jobs have ended
  void wait_all() { wait(submitted_); }
  // Drops jobs that have not begun and waits for the running one (its waits have timeouts). Memory
  // that jobs use must outlive this.
  void stop();

 private:
  void run();

  Ticket submitted_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  struct Job {
    std::function<void()> work;
    StepClock* clock = nullptr;  // of the submitting thread
  };
  std::deque<Job> jobs_;
  Ticket done_ = 0;
  bool stop_ = false;
  const Recorded recorded_;
  std::exception_ptr error_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace machine
