#include "machine/world/worker.h"

#include <utility>

namespace machine {

Worker::Worker(bool own_thread, Recorded recorded) : recorded_(recorded) {
  if (own_thread) thread_ = std::thread([this] { run(); });
}

void Worker::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Worker::Ticket Worker::submit(std::function<void()> job) {
  if (!thread_.joinable()) {
    job();
    return ++submitted_;
  }
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  jobs_.push_back({std::move(job), StepClock::running()});
  changed_.notify_all();
  return ++submitted_;
}

void Worker::wait(Ticket ticket) {
  if (!thread_.joinable()) return;
  std::unique_lock lock(mutex_);
  const auto over = [&] { return error_ || done_ >= ticket; };
  if (!over()) {
    const During waiting(
        recorded_.waiting,
        recorded_.waiting == Part::communication ? recorded_.group : std::string_view(),
        StepTimes::other_thread);
    changed_.wait(lock, over);
  }
  if (error_) std::rethrow_exception(error_);
}

void Worker::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
    if (stop_) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      const StepClock::Job recording(job.clock, recorded_.lane);
      job.work();
    } catch (...) {
      error = std::current_exception();
    }
    job.work = nullptr;  // frees the captures before the job counts as done
    lock.lock();
    ++done_;
    if (error) {
      error_ = error;
      jobs_.clear();
      stop_ = true;
    }
    changed_.notify_all();
  }
}

}  // namespace machine
