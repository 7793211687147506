#pragma once
// A link that misbehaves as it is told, to show that whoever judges links finds it. Off, and
// without any cost, unless faults are set before links are made: only then does World::connect wrap
// them. Host memory only; the control plane is left alone.
//
//   link_faults.slow.push_back({2, 3, 50e6});   // ranks 2 and 3, 50 MB/s each way

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "machine/link/link.h"

namespace machine {

struct LinkFaults {
  // What one of the two receives from the other takes at least bytes / bytes_per_second, one
  // message after the other. Ranks are the world's.
  struct Slow {
    int first, second;
    double bytes_per_second;
  };
  // One bit of a message that `rank` receives from `peer`, modulo the message's length; `due` is
  // asked at each of them.
  struct Corrupt {
    int rank, peer;
    std::uint64_t bit;
    std::function<bool()> due;
  };
  std::vector<Slow> slow;
  std::vector<Corrupt> corrupt;
};
inline LinkFaults link_faults;  // of this process

std::unique_ptr<Link> with_faults(std::unique_ptr<Link> link);
// What a link was before it was wrapped: for who needs its kind.
Link& plain(Link& link);

}  // namespace machine
