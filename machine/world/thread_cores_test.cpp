#include "machine/world/thread_cores.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <sched.h>

#include <cstddef>
#include <vector>

#include "machine/world/binding.h"

namespace machine {
namespace {

// Returns the CPUs of each OpenMP thread, as the system has them.
std::vector<std::vector<int>> cpus_of_threads(int threads) {
  std::vector<std::vector<int>> cpus(static_cast<std::size_t>(threads));
#pragma omp parallel num_threads(threads)
  {
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &set)) cpus[static_cast<std::size_t>(omp_get_thread_num())].push_back(cpu);
  }
  return cpus;
}

TEST(ThreadsOnCores, EachThreadHasACoreUntilTheEnd) {
  const std::vector<int> cores = given_cores();
  if (cores.size() < 2) GTEST_SKIP() << "one core";
  const auto before = cpus_of_threads(2);
  {
    const ThreadsOnCores bound(cores, 2);
    const auto now = cpus_of_threads(2);
    EXPECT_NE(now[0], now[1]);
    for (const auto& cpus : now) EXPECT_LT(cpus.size(), before[0].size());
    const ThreadsOnCores too_many(cores, static_cast<int>(cores.size()) + 1);
    EXPECT_EQ(cpus_of_threads(2), now);
  }
  EXPECT_EQ(cpus_of_threads(2), before);
}

}  // namespace
}  // namespace machine
