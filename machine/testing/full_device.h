#pragma once
// A device whose memory is exhausted.

#include <cstddef>
#include <vector>

#include "machine/base/error.h"
#include "machine/device/device.h"

namespace machine {

inline constexpr std::size_t gibibyte = std::size_t{1} << 30;

// Allocates blocks until the device has no more.
inline std::vector<Memory> fill_device(Device& device, std::size_t bytes) {
  std::vector<Memory> all;
  try {
    for (;;) all.push_back(device.allocate(bytes, Category::buffers));
  } catch (const MachineError&) {
    return all;
  }
}

}  // namespace machine
