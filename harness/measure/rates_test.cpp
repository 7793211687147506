#include "harness/measure/rates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "harness/measure/batches.h"
#include "harness/unit/unit.h"
#include "machine/world/binding.h"

namespace harness {
namespace {

using machine::Dtype;
using machine::Transport;

TEST(Rates, InterpolateOverTheLogarithm) {
  Rates rates;
  rates.set_memory(2, 1024, 8e9);
  rates.set_memory(2, 16384, 4e9);
  EXPECT_EQ(rates.memory_bytes_per_second(1, 2), 8e9);
  EXPECT_EQ(rates.memory_bytes_per_second(1024, 2), 8e9);
  EXPECT_DOUBLE_EQ(rates.memory_bytes_per_second(4096, 2), 6e9);
  EXPECT_EQ(rates.memory_bytes_per_second(1e9, 2), 4e9);
  EXPECT_EQ(rates.memory_bytes_per_second(1024, 3), 0);
  EXPECT_EQ(rates.flops_per_second(Dtype::float32, 2), 0);
}

TEST(Rates, HaveNames) {
  Rates rates;
  rates.set_memory(2, 1048576, 8e9);
  rates.set_flops(4, Dtype::bfloat16, 2e12);
  rates.set_link({2, Transport::shared_memory, true}, 4096, 3e9);
  rates.set_link({2, Transport::shared_memory, false}, 4096, 4e9);
  const std::map<std::string, double> expected = {
      {"link_GBps/transport:shared_memory/state:fresh/ranks:2/bytes:4096", 3.0},
      {"link_GBps/transport:shared_memory/state:unchanged/ranks:2/bytes:4096", 4.0},
      {"copy_GBps/ranks:2/bytes:1048576", 8.0},
      {"gemm_GFLOPs/ranks:4/dtype:bfloat16", 2000.0}};
  EXPECT_EQ(rates.named(), expected);
}

// With local copies at 1 GB/s, a copy of 2 GB takes 4 s. Received at 0.4 GB/s, it takes 5 s.
TEST(Limit, UsesTheCopyRateForLocalBytesAndTheLinkRateForOthers) {
  Rates rates;
  rates.set_memory(2, 1000, 1e9);
  rates.set_link({2, Transport::shared_memory, false}, 1000, 0.4e9);
  rates.set_link({2, Transport::shared_memory, true}, 1000, 0.25e9);
  Cost cost{.memory_bytes = 4e9, .working_set_bytes = 1000};
  EXPECT_DOUBLE_EQ(limit_s(cost, rates, 2), 4);
  cost.wire_bytes = 2e9;  // all 4 GB are a copy from the peer: 2 / 0.4
  EXPECT_DOUBLE_EQ(limit_s(cost, rates, 2), 5);
  cost.flops = 7e9;
  rates.set_flops(2, Dtype::float32, 1e9);
  EXPECT_DOUBLE_EQ(limit_s(cost, rates, 2), 7);
  EXPECT_EQ(limit_s(cost, rates, 3), 0);  // not measured
}

TEST(Limit, IsNotBelowACopyIfALinkIsFaster) {
  Rates rates;
  rates.set_memory(2, 1000, 1e9);
  rates.set_link({2, Transport::shared_memory, false}, 1000, 0.6e9);
  const Cost cost{.memory_bytes = 4e9, .working_set_bytes = 1000, .wire_bytes = 2e9};
  EXPECT_DOUBLE_EQ(limit_s(cost, rates, 2), 4);
}

// If another engine may move the bytes, the slower of memory and wire limits a rank.
TEST(Limit, OverMpiIsTheLargerOfMemoryAndWire) {
  Rates rates;
  rates.set_memory(2, 1000, 1e9);
  rates.set_link({2, Transport::mpi, false}, 1000, 0.5e9);
  Cost cost{.memory_bytes = 3e9,
            .working_set_bytes = 1000,
            .wire_bytes = 1e9,
            .transport = Transport::mpi};
  EXPECT_DOUBLE_EQ(limit_s(cost, rates, 2), 3);
  cost.wire_bytes = 2e9;
  EXPECT_DOUBLE_EQ(limit_s(cost, rates, 2), 4);
}

TEST(Batches, EachReportsProgress) {
  std::atomic<std::uint64_t> lived{0};
  std::vector<std::uint64_t> seen;
  const auto call = [&] {
    seen.push_back(lived.load());
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  };
  seconds_of(call, [] {}, {.batch_s = 1e-3, .total_s = 20e-3, .progress = &lived});
  ASSERT_GE(seen.size(), 2u);
  for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], i);
  EXPECT_EQ(lived, seen.size());
}

TEST(Rates, MeasureThisMachine) {
  std::mutex mutex;
  std::vector<std::map<std::string, double>> all;
  const auto begin = std::chrono::steady_clock::now();
  machine::run_ranks(3, [&](machine::World& world) {
    Rates rates;
    rates.measure(world, 2);
    rates.measure(world, 2);  // known, so it takes no time
    rates.measure_link(world, 2, Transport::shared_memory);
    rates.measure_link(world, 2, Transport::mpi);  // no rate, because MPI does not join threads
    const std::lock_guard lock(mutex);
    all.push_back(rates.named());
    if (world.rank() == 0) {
      const auto now = std::chrono::steady_clock::now();
      std::printf("measured in %.2f s\n", std::chrono::duration<double>(now - begin).count());
      for (const auto& [name, rate] : rates.named()) std::printf("%s %.1f\n", name.c_str(), rate);
    }
  });
  ASSERT_EQ(all.size(), 3u);
  // Copies are measured up to sizes that no cache holds.
  std::size_t copies = 0;
  for (const auto& [name, rate] : all[0]) copies += name.starts_with("copy_GBps");
  EXPECT_GE(copies, 10u);
  EXPECT_EQ(all[0].size(), copies + 2u + 2 * 10u);
  double largest = 0;
  for (const auto& [name, rate] : all[0])
    if (name.starts_with("copy_GBps"))
      largest = std::max(largest, std::stod(name.substr(name.rfind(':') + 1)));
  EXPECT_GT(2 * largest, 4 * static_cast<double>(machine::last_level_cache_bytes()));  // 2 ranks
  for (const auto& rates : all) EXPECT_EQ(rates, all[0]);  // also on the rank that only waited
  for (const auto& [name, rate] : all[0]) EXPECT_GT(rate, 0) << name;
}

}  // namespace
}  // namespace harness
