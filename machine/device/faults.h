#pragma once
// Faults of one rank's machine, which show that the harness finds them. A World holds them and
// gives them to its devices; without a fault, each costs one comparison.
//
//   world.faults().slow_links.push_back({2, 3, 50e6});   // ranks 2 and 3, 50 MB/s each way
//
// Set them before the rank allocates, connects links or writes files that they apply to.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "machine/base/disk_fault.h"

namespace machine {

class Stream;
struct Matrix;

// A message that one of the two ranks receives from the other takes at least
// bytes / bytes_per_second, one message after the other. Ranks of the world.
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
  // Allocations beyond this fail as if the device had no more; for each device of the rank.
  std::size_t memory_bytes = std::numeric_limits<std::size_t>::max();
  std::function<void(Stream& stream, const Matrix& c)> after_gemm;  // may change the result
  DiskFault* disk = nullptr;                                        // of the files that it writes
  // Applied by connect() to links between host memory. The control plane has no faults.
  std::vector<SlowLink> slow_links;
  std::vector<CorruptMessage> corrupt_messages;
};

}  // namespace machine
