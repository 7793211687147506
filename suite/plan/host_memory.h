#pragma once
// The memory of this host that a process can still take, before the kernel ends a process.

#include <cstdint>
#include <string>

namespace suite::configuration {

struct HostMemory {
  double room = 0;  // bytes that this host's processes can take, all together; 0: unknown
  double held = 0;  // bytes that this process has now
};
// Reads /proc and the limits of the process's control groups. root: "" or, in tests, another folder
// with both.
HostMemory host_memory(const std::string& root = "");

}  // namespace suite::configuration
