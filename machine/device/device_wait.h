#pragma once
// For whoever watches a process: that it waits for what a device has queued, not for itself.

#include <atomic>
#include <cstdint>

namespace machine {

// While it lives, this thread waits for a device.
class DeviceWait {
 public:
  // Where such threads are counted, or null; of the process.
  static inline std::atomic<std::atomic<std::uint32_t>*> count{nullptr};

  DeviceWait() : count_(count.load(std::memory_order_relaxed)) {
    if (count_) count_->fetch_add(1, std::memory_order_relaxed);
  }
  ~DeviceWait() {
    if (count_) count_->fetch_sub(1, std::memory_order_relaxed);
  }
  DeviceWait(const DeviceWait&) = delete;
  DeviceWait& operator=(const DeviceWait&) = delete;

 private:
  std::atomic<std::uint32_t>* count_;
};

}  // namespace machine
