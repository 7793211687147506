#pragma once
// The measured limits of this machine, to compare a case's time with: rates of copying memory by
// working set, of receiving from another rank, and of multiplying matrices, with 1 … all ranks
// active.
// Each rate is an upper bound: the best of several batches. Copies use the faster way to store,
// through the cache or bypassing it.

#include <compare>
#include <map>
#include <string>
#include <utility>

#include "machine/device/dtype.h"
#include "machine/link/link.h"
#include "machine/world/world.h"

namespace harness {

// Identifies the rate of receiving from the previous rank, in a ring of all ranks at once.
struct LinkKey {
  int ranks = 0;
  machine::Transport transport{};
  // The sender has just written the bytes, so they come from its cache. Otherwise they are
  // unchanged since they were received last. No difference for mpi.
  bool fresh = false;
  auto operator<=>(const LinkKey&) const = default;
};

struct Cost;  // unit.h

class Rates {
 public:
  // Bytes read plus written per second and rank, when `ranks` ranks copy working sets of this size
  // (source plus destination), each with all threads of its device. Interpolates linearly in the
  // logarithm of the size. 0: not measured.
  double memory_bytes_per_second(double working_set_bytes, int ranks) const;
  // Bytes received per second and rank, each counted once. The working set is the bytes that one
  // rank sends plus those it receives.
  double link_bytes_per_second(double working_set_bytes, const LinkKey& key) const;
  double flops_per_second(machine::Dtype dtype, int ranks) const;
  // For run.json: "copy_GBps/ranks:2/bytes:1048576",
  // "link_GBps/transport:shared_memory/state:fresh/ranks:2/bytes:1048576".
  std::map<std::string, double> named() const;

  // Set a rate directly.
  void set_memory(int ranks, double working_set_bytes, double bytes_per_second);
  void set_link(const LinkKey& key, double working_set_bytes, double bytes_per_second);
  void set_flops(int ranks, machine::Dtype dtype, double flops_per_second);

  // Measure with the first `ranks` ranks active, unless the rates are already known. Links are
  // measured only if the transport can connect these ranks. Collective over the world, about a
  // second each. Every rank gets the same numbers: means over ranks. Both leave
  // World::set_active_ranks at `ranks`.
  void measure(machine::World& world, int ranks);
  void measure_link(machine::World& world, int ranks, machine::Transport transport);

 private:
  using Curve = std::map<double, double>;  // working set -> bytes/s

  std::map<int, Curve> copy_;  // by ranks
  std::map<LinkKey, Curve> link_;
  std::map<std::pair<int, machine::Dtype>, double> gemm_;  // (ranks, dtype) -> FLOP/s
};

// Returns a lower bound of a case's time by the best measured rates of this machine. A time below
// it shows that a rate was measured wrongly.
//
// Arithmetic, memory and wire each give a bound, and the largest is the limit (as in the roofline
// model: Williams, Waterman, Patterson 2009, doi:10.1145/1498765.1498785), except:
//   - Over shared_memory the copying core is the link. W received bytes among M bytes read or
//     written cost a copy of local memory plus the extra time of a copy from a peer's memory:
//     M/C + W (1/L - 2/C). C counts bytes read and written, L each byte once. L is the rate for
//     bytes that are unchanged since they were received last, like the inputs of timed runs. Bytes
//     that a peer has just written are slower (Rates has both), but no rank must fetch them: the
//     producer may write its result into the others' memory.
//   - Over mpi another engine may move the bytes concurrently: the larger of M/C and W/L.
// 0: unknown.
double limit_s(const Cost& cost, const Rates& rates, int ranks);

}  // namespace harness
