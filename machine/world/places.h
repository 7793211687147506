#pragma once
// The GPU, cores and network adapter of each rank of a host.
//
//   const std::vector<Place> places = machine::places(host_topology(), ranks);
//
// GPUs: every rank takes a GPU that it sees and that the fewest ranks have, so ranks share a GPU
// only if there are more ranks than GPUs. Of these it takes the nearest one to the cores that the
// launcher gave it, and of those the first in CUDA's order.
// Cores: ranks that the launcher bound keep their cores. Otherwise ranks run on the cores next to
// their GPUs, and ranks with the same cores next to their GPUs share them equally. A rank whose
// nearest cores are not available, or are fewer than their ranks, takes those of the package, or of
// the host.
// Adapters: the nearest one to the GPU in the tree of PCI bridges. GPUs with several such adapters
// take them in turn. This is information for the record. NCCL makes its own choice.

#include <string>
#include <tuple>
#include <vector>

#include "machine/device/device.h"
#include "machine/world/host_topology.h"

namespace machine {

// The cores and GPUs that a rank may use.
struct RankOfHost {
  std::vector<int> cores;          // that the launcher gave it
  std::vector<cuda::Gpu> visible;  // in CUDA's order
  static auto members(auto& self) { return std::tie(self.cores, self.visible); }
};

struct Place {
  int gpu = -1;  // index into RankOfHost::visible; -1: the rank sees none
  std::string bus_id;
  int numa_node = -1;  // of the GPU; -1: unknown
  std::vector<int> cores;
  std::string adapter;  // empty: unknown
};

std::vector<Place> places(const HostTopology& host, const std::vector<RankOfHost>& ranks);

// Returns the cores of ranks that use the GPUs `bus_ids` and share `cores`. No two ranks share a
// core unless there are more ranks than cores.
std::vector<std::vector<int>> cores_near(const HostTopology& host,
                                         const std::vector<std::string>& bus_ids,
                                         const std::vector<int>& cores);

}  // namespace machine
