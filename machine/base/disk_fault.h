#pragma once
// A slow or full disk. Code that moves bytes to or from files passes each result through it when
// the rank has this fault (Faults::disk).

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <limits>
#include <thread>

namespace machine {

struct DiskFault {
  double seconds_per_byte = 0;
  std::atomic<std::int64_t> room{std::numeric_limits<std::int64_t>::max()};  // bytes to write

  // Takes the system's result: a number of bytes, or an error below zero. Returns it after the
  // delay, or -ENOSPC for a write beyond `room`.
  std::int64_t result(std::int64_t bytes, bool write) {
    if (bytes <= 0) return bytes;
    std::this_thread::sleep_for(
        std::chrono::duration<double>(seconds_per_byte * static_cast<double>(bytes)));
    return write && room.fetch_sub(bytes) < bytes ? -ENOSPC : bytes;
  }
};

}  // namespace machine
