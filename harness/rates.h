#pragma once
// The measured limits of this machine, which a case's time is held against: how fast memory is
// copied at a working set, how fast matrices are multiplied, with 1 … all ranks at it together.

#include <map>
#include <string>
#include <utility>

#include "machine/device/dtype.h"
#include "machine/world/world.h"

namespace harness {

class Rates {
 public:
  // Bytes read plus written per second and rank, when `ranks` ranks copy working sets of this size
  // (source and destination together); between two sizes measured, linear in the size's logarithm.
  // 0: not measured.
  double memory_bytes_per_second(double working_set_bytes, int ranks) const;
  double flops_per_second(machine::Dtype dtype, int ranks) const;
  std::map<std::string, double> named() const;  // for run.json: "copy_GBps/ranks:2/bytes:1048576"

  // The same two numbers put in by hand.
  void set_memory(int ranks, double working_set_bytes, double bytes_per_second);
  void set_flops(int ranks, machine::Dtype dtype, double flops_per_second);

  // Measures with the first `ranks` ranks at work, unless that count is known already. Collective
  // over the world; takes about half a second. Every rank gets the same numbers: means over ranks
  // of each rank's best. Leaves World::set_active_ranks at `ranks`.
  void measure(machine::World& world, int ranks);

 private:
  std::map<int, std::map<double, double>> copy_;           // ranks -> working set -> bytes/s
  std::map<std::pair<int, machine::Dtype>, double> gemm_;  // (ranks, dtype) -> FLOP/s
};

}  // namespace harness
