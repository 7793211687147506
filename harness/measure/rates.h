#pragma once
// The measured limits of this machine, which a case's time is held against: how fast memory is
// copied at a working set, how fast bytes come from another rank, how fast matrices are multiplied,
// with 1 … all ranks at it together.
//
// A limit is what nothing goes beyond: each rate is the best of several batches, and a copy's that
// of the better way to store, in the cache or past it (limit.h says what is made of them).

#include <compare>
#include <map>
#include <string>
#include <utility>

#include "machine/device/dtype.h"
#include "machine/link/link.h"
#include "machine/world/world.h"

namespace harness {

// Bytes received from the rank before, by all ranks of a ring at once.
struct LinkKey {
  int ranks = 0;
  machine::Transport transport{};
  // The sender wrote them just before: they come from its cache. Otherwise nobody has written them
  // since they were received last. For transport mpi the same.
  bool fresh = false;
  auto operator<=>(const LinkKey&) const = default;
};

class Rates {
 public:
  // Bytes read plus written per second and rank, when `ranks` ranks copy working sets of this size
  // (source and destination together), each with all its device's threads; between two sizes
  // measured, linear in the size's logarithm. 0: not measured.
  double memory_bytes_per_second(double working_set_bytes, int ranks) const;
  // Bytes received per second and rank, each counted once though it is read there and written
  // here; the working set is what one rank sends and receives together.
  double link_bytes_per_second(double working_set_bytes, const LinkKey& key) const;
  double flops_per_second(machine::Dtype dtype, int ranks) const;
  // For run.json: "copy_GBps/ranks:2/bytes:1048576",
  // "link_GBps/transport:shared_memory/state:fresh/ranks:2/bytes:1048576".
  std::map<std::string, double> named() const;

  // The same numbers put in by hand.
  void set_memory(int ranks, double working_set_bytes, double bytes_per_second);
  void set_link(const LinkKey& key, double working_set_bytes, double bytes_per_second);
  void set_flops(int ranks, machine::Dtype dtype, double flops_per_second);

  // Measures with the first `ranks` ranks at work, unless that count is known already; and links of
  // this transport among them, where it can join them. Collective over the world; takes about a
  // second each. Every rank gets the same numbers: means over ranks. Leaves
  // World::set_active_ranks at `ranks`.
  void measure(machine::World& world, int ranks);
  void measure_link(machine::World& world, int ranks, machine::Transport transport);

 private:
  using Curve = std::map<double, double>;  // working set -> bytes/s
  static double at(const Curve& curve, double working_set_bytes);

  std::map<int, Curve> copy_;  // by ranks
  std::map<LinkKey, Curve> link_;
  std::map<std::pair<int, machine::Dtype>, double> gemm_;  // (ranks, dtype) -> FLOP/s
};

}  // namespace harness
