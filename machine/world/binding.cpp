#include "machine/world/binding.h"

#include <fmt/format.h>
#include <hwloc.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "machine/base/error.h"
#include "machine/device/host/stream_copy.h"
#include "machine/world/host_topology.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace machine {
namespace {

hwloc_topology_t topology() { return loaded_topology(); }

using Bitmap = std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)>;
Bitmap make_bitmap() { return {hwloc_bitmap_alloc(), &hwloc_bitmap_free}; }

bool is_virtual_machine() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, features = 0, d = 0;
  return __get_cpuid(1, &a, &b, &features, &d) != 0 && (features >> 31) != 0;
#else
  return false;
#endif
}

}  // namespace

std::vector<int> given_cores() {
  const Bitmap given = make_bitmap();
  if (hwloc_get_cpubind(topology(), given.get(), HWLOC_CPUBIND_PROCESS) != 0)
    hwloc_bitmap_copy(given.get(), hwloc_topology_get_allowed_cpuset(topology()));
  std::vector<int> cores;
  const int count = hwloc_get_nbobjs_by_type(topology(), HWLOC_OBJ_CORE);
  for (int i = 0; i < count; ++i)
    if (hwloc_bitmap_intersects(
            hwloc_get_obj_by_type(topology(), HWLOC_OBJ_CORE, static_cast<unsigned>(i))->cpuset,
            given.get()))
      cores.push_back(i);
  if (cores.empty()) cores.push_back(0);
  return cores;
}

CoreSet core_set(const std::vector<int>& cores) {
  CoreSet set;
  for (const int core : cores)
    if (static_cast<std::size_t>(core) < set.size()) set.set(static_cast<std::size_t>(core));
  return set;
}

std::vector<int> cores_of(int index, int ranks, const std::vector<int>& cores) {
  const int count = static_cast<int>(cores.size());
  if (ranks >= count) return {cores[index % count]};
  const int begin = static_cast<int>(static_cast<long>(count) * index / ranks);
  const int end = static_cast<int>(static_cast<long>(count) * (index + 1) / ranks);
  return {cores.begin() + begin, cores.begin() + end};
}

void bind_process(const std::vector<int>& cores) {
  const Bitmap set = make_bitmap();
  for (const int core : cores) {
    const hwloc_obj_t object =
        hwloc_get_obj_by_type(topology(), HWLOC_OBJ_CORE, static_cast<unsigned>(core));
    if (object) hwloc_bitmap_or(set.get(), set.get(), object->cpuset);
  }
  if (hwloc_set_cpubind(topology(), set.get(), HWLOC_CPUBIND_PROCESS) != 0)
    throw MachineError(
        fmt::format("cannot bind this process to cores {}: {}", text(cores), std::strerror(errno)));
}

std::string why_not_numa_node(int node) {
  const int count = hwloc_get_nbobjs_by_type(topology(), HWLOC_OBJ_NUMANODE);
  if (node < 0 || node >= count) return fmt::format("NUMA node {} of a host with {}", node, count);
  NumaMemory memory(node);
  if (void* const data = memory.allocate(1)) {
    memory.free(data, 1);
    return {};
  }
  return fmt::format("cannot allocate memory of NUMA node {}: {}; containers may forbid mbind",
                     node, std::strerror(errno));
}

void* NumaMemory::allocate(std::size_t bytes) {
  const hwloc_obj_t node =
      hwloc_get_obj_by_type(topology(), HWLOC_OBJ_NUMANODE, static_cast<unsigned>(node_));
  void* const data = hwloc_alloc_membind(topology(), bytes, node->nodeset, HWLOC_MEMBIND_BIND,
                                         HWLOC_MEMBIND_STRICT | HWLOC_MEMBIND_BYNODESET);
  if (!data || !pinned_for_) return data;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  try {
    pins_[data] = pinned_for_->pin(data, (bytes + page - 1) / page * page);
  } catch (...) {
    free(data, bytes);
    throw;
  }
  return data;
}

void NumaMemory::free(void* data, std::size_t bytes) {
  pins_.erase(data);
  hwloc_free(topology(), data, bytes);
}

std::size_t last_level_cache_bytes() {
  static const std::size_t bytes = [] {
    for (const hwloc_obj_type_t level : {HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L1CACHE}) {
      std::size_t sum = 0;
      for (hwloc_obj_t cache = nullptr;
           (cache = hwloc_get_next_obj_by_type(topology(), level, cache)) != nullptr;)
        if (hwloc_bitmap_intersects(cache->cpuset, hwloc_topology_get_allowed_cpuset(topology())))
          sum += cache->attr->cache.size;
      if (sum > 0) return sum;
    }
    return std::size_t{32} << 20;  // the host reports no cache
  }();
  return bytes;
}

bool stays_in_cache(std::size_t bytes, int ranks, const SharedCache& cache,
                    const std::function<bool(std::size_t)>& measured) {
  // AMD's EPYC has 4 MiB for each core, Intel's Xeons 1.4 to 5.
  constexpr std::size_t of_core = std::size_t{4} << 20;
  if (bytes > cache.bytes) return false;
  if (!cache.virtual_machine) return true;
  if (bytes <= static_cast<std::size_t>(cache.cores) * of_core) return true;
  const int busy = std::min(ranks, cache.cores);  // ranks that share a core share its part
  return measured(std::min(std::bit_ceil(bytes), cache.bytes) / static_cast<std::size_t>(busy));
}

bool stays_in_cache(std::size_t bytes, int ranks) {
  static const SharedCache cache{last_level_cache_bytes(),
                                 hwloc_get_nbobjs_by_type(topology(), HWLOC_OBJ_CORE),
                                 is_virtual_machine()};
  return stays_in_cache(bytes, ranks, cache, [](std::size_t of_core) {
    static std::mutex mutex;
    static std::map<std::size_t, bool> known;
    const std::lock_guard lock(mutex);
    const auto found = known.find(of_core);
    return found != known.end() ? found->second : known[of_core] = host::stays_in_cache(of_core);
  });
}

std::string text(const std::vector<int>& cores) {
  std::string result;
  for (std::size_t i = 0; i < cores.size();) {
    std::size_t last = i;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
    result += fmt::format("{}{}", result.empty() ? "" : ",", cores[i]);
    if (last > i) result += fmt::format("-{}", cores[last]);
    i = last + 1;
  }
  return result;
}

}  // namespace machine
