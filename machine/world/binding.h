#pragma once
// The cores that a rank runs on, and memory of a NUMA node, through hwloc. Ranks of one host share
// no core while there are enough cores. With more ranks than cores, ranks take cores in turn.

#include <bitset>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "machine/device/device.h"

namespace machine {

// Returns the cores available to this process at its start, as hwloc's logical core numbers.
std::vector<int> given_cores();

// Cores in a message of fixed size.
using CoreSet = std::bitset<4096>;
CoreSet core_set(const std::vector<int>& cores);

// Returns the cores of rank `index` of `ranks` that share `cores`: an equal block, or one in turn.
std::vector<int> cores_of(int index, int ranks, const std::vector<int>& cores);

// Binds every thread of this process. Throws MachineError naming the cores.
void bind_process(const std::vector<int>& cores);

// Returns why this process cannot allocate memory of a NUMA node, or an empty text. node: hwloc's
// logical number.
std::string why_not_numa_node(int node);

// Memory of one NUMA node, in whole pages. Null if the node has no memory left. pinned_for: pins
// the memory for that device, unless null. The device outlives this, and its streams do not use
// memory that is freed.
class NumaMemory final : public HostMemory {
 public:
  explicit NumaMemory(int node, Device* pinned_for = nullptr)
      : node_(node), pinned_for_(pinned_for) {}
  void* allocate(std::size_t bytes) override;
  void free(void* data, std::size_t bytes) override;

 private:
  int node_;
  Device* pinned_for_;
  std::map<void*, std::shared_ptr<void>> pins_;
};

// Returns the sum over all last-level caches that this process may use.
std::size_t last_level_cache_bytes();

// The last-level caches of a host, and its cores.
struct SharedCache {
  std::size_t bytes = 0;
  int cores = 1;
  bool virtual_machine = false;
};
// Returns whether ranks can expect to find their `bytes` in it again in the next call. A virtual
// machine shows the whole cache of its socket, which others use too: above the share of its cores,
// the answer is that of `measured` for the part of one core.
bool stays_in_cache(std::size_t bytes, int ranks, const SharedCache& cache,
                    const std::function<bool(std::size_t)>& measured);
// The same for this host, measured once for each power of two.
bool stays_in_cache(std::size_t bytes, int ranks);

std::string text(const std::vector<int>& cores);  // "0-3,8"

}  // namespace machine
