#pragma once
// Injected faults of one rank's machine. They show that the harness detects such faults. A World
// holds them and passes them to its devices. If a fault is absent, its check costs one comparison.
//
//   world.faults().slow_links.push_back({2, 3, 50e6});   // ranks 2 and 3, 50 MB/s each way
//
// Set them before the rank makes the allocations, links or files to which they apply.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "machine/base/disk_fault.h"

namespace machine {

class Stream;
struct Matrix;

// Each message between the two ranks takes at least bytes / bytes_per_second. Messages in one
// direction follow each other. Ranks are ranks of the world.
struct SlowLink {
  int first, second;
  double bytes_per_second;
};

// Flips one bit, modulo the length, of each message from `peer` to `rank` for which due() is true.
struct CorruptMessage {
  int rank, peer;
  std::uint64_t bit;
  std::function<bool()> due;
};

struct Faults {
  // Allocations beyond this total fail as on a full device. Applies to each device of the rank.
  std::size_t memory_bytes = std::numeric_limits<std::size_t>::max();
  std::function<void(Stream& stream, const Matrix& c)> after_gemm;  // may change the result
  DiskFault* disk = nullptr;  // of the files that this rank writes
  // Applied by connect() to links between host memory. The control plane has no faults.
  std::vector<SlowLink> slow_links;
  std::vector<CorruptMessage> corrupt_messages;
};

}  // namespace machine
