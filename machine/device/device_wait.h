#pragma once
// Shows the watchdog that a thread waits for work that a device has queued, not for the thread's
// own work.

#include <atomic>
#include <cstdint>

#include "machine/device/device.h"

namespace machine {

// Marks, while it exists, that this thread waits for the device.
class DeviceWait {
 public:
  explicit DeviceWait(const Device& device) : count_(device.wait_count()) {
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
