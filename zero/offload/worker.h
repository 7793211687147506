#pragma once
// Who runs the collectives of a group beside the rank's own thread: a thread of its own, one job
// after the other in the order of submit, or, without one, submit itself. So the jobs and their
// order, and with them every bit, are the same with and without.
//
// Memory is taken and given back by the submitting thread only (a device's ledger knows one
// thread): who submits keeps what a job works on until wait has returned for it.
//
// What a job throws ends the queue: submit and wait throw it again from then on.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "machine/world/step_clock.h"

namespace zero {

class Worker {
 public:
  using Ticket = std::uint64_t;

  // For who times a step: the thread's lane, and what waiting for it is.
  struct Recorded {
    const char* lane = "progress";
    machine::Part waiting = machine::Part::communication;
    const char* group = "dp";
  };

  explicit Worker(bool own_thread, Recorded recorded);
  explicit Worker(bool own_thread) : Worker(own_thread, Recorded()) {}
  ~Worker() { stop(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  Ticket submit(std::function<void()> job);
  void wait(Ticket ticket);  // until this job, and all before it, have ended
  void wait_all() { wait(submitted_); }
  // For good. Jobs that have not begun are dropped; one that has ends first (its waits have
  // timeouts). What jobs use must outlive this.
  void stop();

 private:
  void run();

  Ticket submitted_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  struct Job {
    std::function<void()> work;
    machine::StepClock* clock = nullptr;  // of who gave it
  };
  std::deque<Job> jobs_;
  Ticket done_ = 0;
  bool stop_ = false;
  const Recorded recorded_;
  std::exception_ptr error_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace zero
