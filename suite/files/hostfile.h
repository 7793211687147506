#pragma once
// The hosts to start ranks on, from a file in the form of DeepSpeed, Open MPI, MPICH or Slurm:
//
//   worker-1 slots=4        # DeepSpeed, Open MPI
//   worker-2:4              # MPICH
//   node[01-03,07] slots=8  # names as Slurm shortens them
//
// A line without a number means one rank. Each further such line of a host adds one rank, as in
// Slurm's hostfiles.

#include <string>
#include <vector>

namespace suite {

struct HostSlots {
  std::string name;
  int slots = 1;
};

// Throws harness::UsageError with file and line.
std::vector<HostSlots> read_hostfile(const std::string& path);

}  // namespace suite
