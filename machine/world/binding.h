#pragma once
// The cores that a rank runs on, through hwloc. Ranks of one host share no core while there are
// enough cores. With more ranks than cores, ranks take cores in turn.

#include <cstddef>
#include <string>
#include <vector>

namespace machine {

// Returns the cores available to this process at its start, as hwloc's logical core numbers.
std::vector<int> given_cores();

// Returns the cores of rank `index` of `ranks` that share `cores`: an equal block, or one in turn.
std::vector<int> cores_of(int index, int ranks, const std::vector<int>& cores);

// Binds every thread of this process. Throws MachineError naming the cores.
void bind_process(const std::vector<int>& cores);

// Returns the sum over all last-level caches of this host.
std::size_t last_level_cache_bytes();

std::string text(const std::vector<int>& cores);  // "0-3,8"

}  // namespace machine
