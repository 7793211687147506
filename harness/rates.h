#pragma once
// The measured limits of this machine, which a case's time is held against: how fast memory is
// copied at a working set, how fast matrices are multiplied, with 1 … all ranks at it together.

#include <map>
#include <string>

#include "machine/device/dtype.h"
#include "machine/world/world.h"

namespace harness {

class Rates {
 public:
  // Bytes read plus written per second and rank, when `ranks` ranks copy working sets of this size.
  // 0: not measured.
  double memory_bytes_per_second(double working_set_bytes, int ranks) const;
  double flops_per_second(machine::Dtype dtype, int ranks) const;
  std::map<std::string, double> named() const;  // for run.json: "copy_GBps/ranks:2/bytes:1048576"

  // Collective over the world; takes about a second for every rank count given.
  static Rates measure(machine::World& world, const std::vector<int>& rank_counts);

 private:
  std::map<int, std::map<double, double>> copy_;           // ranks -> working set -> bytes/s
  std::map<std::pair<int, machine::Dtype>, double> gemm_;  // (ranks, dtype) -> FLOP/s
};

}  // namespace harness
