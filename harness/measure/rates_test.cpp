#include "harness/measure/rates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "harness/measure/batches.h"
#include "harness/measure/memory_batches.h"
#include "harness/measure/rate_curve.h"
#include "machine/world/binding.h"

namespace harness {
namespace {

using machine::Dtype;
using machine::Transport;

TEST(Rates, InterpolateOverTheLogarithm) {
  Rates rates;
  rates.set_memory(2, 1024, 4e9);
  rates.set_memory(2, 16384, 8e9);
  EXPECT_EQ(rates.memory_bytes_per_second(1, 2), 4e9);
  EXPECT_EQ(rates.memory_bytes_per_second(1024, 2), 4e9);
  EXPECT_DOUBLE_EQ(rates.memory_bytes_per_second(4096, 2), 6e9);
  EXPECT_EQ(rates.memory_bytes_per_second(1e9, 2), 8e9);
  EXPECT_EQ(rates.memory_bytes_per_second(1024, 3), 0);
  EXPECT_EQ(rates.flops_per_second(Dtype::float32, 2), 0);
}

TEST(Rates, AllowAPartOfTheSetInANearerCache) {
  Rates rates;
  rates.set_memory(2, 1024, 8e9);
  rates.set_memory(2, 2048, 3e9);
  rates.set_memory(2, 16384, 2e9);
  // 1024 at 8e9, the rest at 2e9; not 2048 at 3e9
  EXPECT_DOUBLE_EQ(rates.memory_bytes_per_second(16384, 2), 16384 / (1024 / 8e9 + 15360 / 2e9));
  EXPECT_EQ(rates.memory_bytes_per_second(1024, 2), 8e9);
}

TEST(Rates, OfAHalfAreAtLeastThoseOfTheWhole) {
  std::vector<double> rates{3, 5, 4, 8, 2};
  raise_halves(rates);
  EXPECT_EQ(rates, (std::vector<double>{5, 5, 8, 8, 2}));
  std::map<double, double> curve{{1, 3}, {2, 5}, {4, 4}};
  for (const double set : {1.0, 2.0, 4.0}) raise_half(curve, set);
  EXPECT_EQ(curve, (std::map<double, double>{{1, 5}, {2, 5}, {4, 4}}));
}

TEST(Rates, HaveNames) {
  Rates rates;
  rates.set_memory(2, 1048576, 8e9);
  rates.set_update(2, 1048576, 9e9);
  rates.set_flops(4, Dtype::bfloat16, 2e12);
  rates.set_link({2, Transport::shared_memory, true}, 4096, 3e9);
  rates.set_link({2, Transport::shared_memory, false}, 4096, 4e9);
  rates.set_link({2, Transport::nccl, false}, 4096, 5e9);
  rates.set_peak(Dtype::bfloat16, 3e12);
  rates.set_peak(Dtype::float64, 0);  // unknown
  const std::map<std::string, double> expected = {
      {"link_GBps/transport:shared_memory/state:fresh/ranks:2/bytes:4096", 3.0},
      {"link_GBps/transport:shared_memory/state:unchanged/ranks:2/bytes:4096", 4.0},
      {"copy_GBps/ranks:2/bytes:1048576", 8.0},
      {"update_GBps/ranks:2/bytes:1048576", 9.0},
      {"link_GBps/transport:nccl/ranks:2/bytes:4096", 5.0},
      {"gemm_GFLOPs/ranks:4/dtype:bfloat16", 2000.0},
      {"peak_GFLOPs/dtype:bfloat16", 3000.0}};
  EXPECT_EQ(rates.named(), expected);
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

// Ranks that share the memory have the bandwidth of the slowest, in as many batches.
TEST(Batches, OfAllRanksEndWithTheSlowest) {
  std::mutex mutex;
  std::vector<double> seconds;
  std::vector<int> calls;
  machine::run_ranks(2, [&](machine::World& world) {
    int mine = 0;
    const auto call = [&] {
      ++mine;
      std::this_thread::sleep_for(std::chrono::milliseconds(1 + 2 * world.rank()));
    };
    const double found = seconds_of_all(world, world.group(), cached_sets / 2, call, [] {});
    const std::lock_guard lock(mutex);
    seconds.push_back(found);
    calls.push_back(mine);
  });
  ASSERT_EQ(seconds.size(), 2u);
  EXPECT_EQ(seconds[0], seconds[1]);
  EXPECT_EQ(calls[0], calls[1]);
  EXPECT_GE(seconds[0], 3e-3);
}

TEST(Rates, MeasureThisMachine) {
  if (machine::given_cores().size() < 2) GTEST_SKIP() << "two ranks would take turns on one core";
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
  std::map<std::string, std::size_t> rates_of;
  for (const auto& [name, rate] : all[0]) ++rates_of[name.substr(0, name.find('/'))];
  // Sets grow by 2 from 4 KiB, those of updates from 1 MiB, to 64 MiB or more.
  EXPECT_GE(rates_of["copy_GBps"], 15u);
  EXPECT_EQ(rates_of["update_GBps"], rates_of["copy_GBps"] - 8);
  EXPECT_GE(rates_of["link_GBps"], 2 * 15u);
  EXPECT_EQ(rates_of["gemm_GFLOPs"], 2u);
  EXPECT_EQ(rates_of.size(), 4u);
  double largest = 0;
  for (const auto& [name, rate] : all[0])
    if (name.starts_with("copy_GBps"))
      largest = std::max(largest, std::stod(name.substr(name.rfind(':') + 1)));
  EXPECT_GT(2 * largest, 4 * static_cast<double>(machine::last_level_cache_bytes()));  // 2 ranks
  for (const auto& rates : all) EXPECT_EQ(rates, all[0]);  // also on the rank that only waited
  for (const auto& [name, rate] : all[0]) EXPECT_GT(rate, 0) << name;
}

// The times of such ranks show no speed, and the products of all take seconds.
TEST(Rates, AreNotMeasuredByRanksThatShareAGpu) {
  if (machine::cuda::count() < 1) GTEST_SKIP() << "no CUDA device";
  machine::run_ranks(2, [](machine::World& world) {
    world.use_device(machine::cuda::make_device(0));
    Rates rates;
    rates.measure(world, 2);
    rates.measure_link(world, 2, Transport::cuda_ipc);
    EXPECT_TRUE(rates.named().empty());
  });
}

// A short run has the core to itself, a long one shares it: no rate bounds both.
TEST(Rates, AreNotMeasuredByRanksThatShareCores) {
  const int cores = static_cast<int>(machine::given_cores().size());
  if (cores > 16) GTEST_SKIP() << "needs more ranks than cores, and there are " << cores;
  machine::run_ranks(cores + 1, [&](machine::World& world) {
    Rates rates;
    rates.measure(world, cores + 1);
    rates.measure_link(world, cores + 1, Transport::shared_memory);
    EXPECT_TRUE(rates.named().empty());
  });
}

TEST(Rates, MeasuredAgainKeepTheBetter) {
  machine::run_ranks(2, [](machine::World& world) {
    world.set_active_ranks(2);
    Rates rates;
    rates.set_flops(2, Dtype::float32, 1);
    rates.set_flops(2, Dtype::bfloat16, 1e30);
    rates.set_memory(2, 4096, 1);
    rates.set_memory(2, 16384, 1);
    rates.set_memory(2, 1 << 20, 1);
    rates.set_link({2, Transport::shared_memory, false}, 16384, 1);
    using enum RateKey::Kind;
    EXPECT_TRUE(rates.measure_again(world, {matrix, 2, Dtype::float32}));
    EXPECT_GT(rates.flops_per_second(Dtype::float32, 2), 1e6);
    EXPECT_TRUE(rates.measure_again(world, {matrix, 2, Dtype::bfloat16}));
    EXPECT_EQ(rates.flops_per_second(Dtype::bfloat16, 2), 1e30);
    EXPECT_TRUE(rates.measure_again(world, {memory, 2, {}, {}, 10000}));
    EXPECT_GT(rates.memory_bytes_per_second(4096, 2), 1e6);
    EXPECT_GT(rates.memory_bytes_per_second(16384, 2), 1e6);
    EXPECT_EQ(rates.named().at("copy_GBps/ranks:2/bytes:1048576"), 1e-9)
        << "it does not determine the rate";
    EXPECT_TRUE(rates.measure_again(world, {link, 2, {}, Transport::shared_memory, 10000}));
    EXPECT_GT(rates.link_bytes_per_second(10000, {2, Transport::shared_memory, false}), 1e6);
  });
}

TEST(Rates, AreMeasuredAgainAFewTimesOnly) {
  machine::run_ranks(1, [](machine::World& world) {
    world.set_active_ranks(1);
    Rates rates;
    const auto key = [](double bytes) {
      return RateKey{RateKey::Kind::memory, 1, {}, Transport::shared_memory, bytes};
    };
    for (const double set : {4096.0, 65536.0}) rates.set_memory(1, set, 1);
    for (int i = 0; i < Rates::most_again; ++i)
      EXPECT_TRUE(rates.measure_again(world, key(5000 + i)));
    EXPECT_FALSE(rates.measure_again(world, key(5000)));
    EXPECT_TRUE(rates.measure_again(world, key(50000)));
    EXPECT_FALSE(rates.measure_again(world, {}));
  });
}

}  // namespace
}  // namespace harness
