#pragma once
// The hosts to start ranks on, from a file as DeepSpeed, Open MPI, MPICH and Slurm have it:
//
//   worker-1 slots=4        # DeepSpeed, Open MPI
//   worker-2:4              # MPICH
//   node[01-03,07] slots=8  # names as Slurm shortens them
//
// A line without a number means one rank. A host on another such line gets one more rank, as in
// Slurm's own hostfiles.

#include <string>
#include <vector>

namespace suite {

struct HostSlots {
  std::string name;
  int slots = 1;
};

// Throws harness::UsageError naming file and line.
std::vector<HostSlots> read_hostfile(const std::string& path);

// "node[01-03,07]" in full. Throws harness::UsageError naming `place`.
std::vector<std::string> expanded_hosts(const std::string& place, const std::string& text);

}  // namespace suite
