#pragma once
// Reads batches on its own thread, ahead of the rank that takes them.
//
//   AheadReader<Batch> reader([&](std::int64_t step) { return read(step); });
//   const Batch batch = reader.take(step, 60);     // then reads step + 1
//
// One batch is ready at a time. A step out of order is read again. An error of the thread is thrown
// by take, on the rank that takes the batch. take throws machine::Timeout after timeout_s.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "machine/base/error.h"

namespace suite {

template <class Batch>
class AheadReader {
 public:
  // read: called on the thread only.
  explicit AheadReader(std::function<Batch(std::int64_t step)> read)
      : read_(std::move(read)), thread_([this] { work(); }) {}
  AheadReader(const AheadReader&) = delete;
  AheadReader& operator=(const AheadReader&) = delete;
  ~AheadReader() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  Batch take(std::int64_t step, double timeout_s) {
    std::unique_lock lock(mutex_);
    if (wanted_ != step) {
      wanted_ = step;
      batch_.reset();
      error_ = nullptr;
      changed_.notify_all();
    }
    const bool ready = changed_.wait_for(lock, std::chrono::duration<double>(timeout_s),
                                         [&] { return batch_ || error_; });
    if (!ready)
      throw machine::Timeout("no batch of tokens was read in time; check the disk of the data");
    if (error_) std::rethrow_exception(error_);
    Batch batch = std::move(*batch_);
    batch_.reset();
    wanted_ = step + 1;
    changed_.notify_all();
    return batch;
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return ends_ || (wanted_ >= 0 && !batch_ && !error_); });
      if (ends_) return;
      const std::int64_t step = wanted_;
      lock.unlock();
      std::optional<Batch> batch;
      std::exception_ptr error;
      try {
        batch.emplace(read_(step));
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (wanted_ != step) continue;  // another step was asked for in the meantime
      batch_ = std::move(batch);
      error_ = error;
      changed_.notify_all();
    }
  }

  std::function<Batch(std::int64_t step)> read_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t wanted_ = -1;  // the step that the thread reads
  std::optional<Batch> batch_;
  std::exception_ptr error_;
  bool ends_ = false;
  std::thread thread_;  // last: uses the others
};

}  // namespace suite
