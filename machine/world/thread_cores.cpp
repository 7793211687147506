#include "machine/world/thread_cores.h"

#include <hwloc.h>
#include <omp.h>

#include <cstddef>
#include <utility>

#include "machine/world/host_topology.h"

namespace machine {
namespace {

// Calls call(i) on the i-th OpenMP thread of the calling one.
void on_each_thread(int threads, const auto& call) {
#pragma omp parallel num_threads(threads)
  call(static_cast<std::size_t>(omp_get_thread_num()));
}

}  // namespace

void ThreadsOnCores::Free::operator()(hwloc_bitmap_s* bitmap) const { hwloc_bitmap_free(bitmap); }

ThreadsOnCores::ThreadsOnCores(const std::vector<int>& cores, int threads) {
#ifdef __SANITIZE_THREAD__
  threads = 1;  // the OpenMP runtime's own synchronization is invisible to the thread sanitizer
#endif
  if (threads < 2 || cores.size() < static_cast<std::size_t>(threads)) return;
  hwloc_topology* const topology = loaded_topology();
  before_.resize(static_cast<std::size_t>(threads));
  on_each_thread(threads, [&](std::size_t thread) {
    Bitmap now(hwloc_bitmap_alloc()), own(hwloc_bitmap_alloc());
    const hwloc_obj_t core =
        hwloc_get_obj_by_type(topology, HWLOC_OBJ_CORE, static_cast<unsigned>(cores[thread]));
    if (!core || hwloc_get_cpubind(topology, now.get(), HWLOC_CPUBIND_THREAD) != 0) return;
    hwloc_bitmap_and(own.get(), now.get(), core->cpuset);
    if (hwloc_bitmap_iszero(own.get())) return;
    if (hwloc_set_cpubind(topology, own.get(), HWLOC_CPUBIND_THREAD) == 0)
      before_[thread] = std::move(now);
  });
}

ThreadsOnCores::~ThreadsOnCores() {
  if (before_.empty()) return;
  hwloc_topology* const topology = loaded_topology();
  on_each_thread(static_cast<int>(before_.size()), [&](std::size_t thread) {
    if (before_[thread]) hwloc_set_cpubind(topology, before_[thread].get(), HWLOC_CPUBIND_THREAD);
  });
}

}  // namespace machine
