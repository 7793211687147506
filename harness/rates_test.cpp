#include "harness/rates.h"

#include <gtest/gtest.h>

#include <chrono>
#include <mutex>

namespace harness {
namespace {

using machine::Dtype;

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
  const std::map<std::string, double> expected = {{"copy_GBps/ranks:2/bytes:1048576", 8.0},
                                                  {"gemm_GFLOPs/ranks:4/dtype:bfloat16", 2000.0}};
  EXPECT_EQ(rates.named(), expected);
}

TEST(Rates, MeasureThisMachine) {
  std::mutex mutex;
  std::vector<std::map<std::string, double>> all;
  const auto begin = std::chrono::steady_clock::now();
  machine::run_ranks(3, [&](machine::World& world) {
    Rates rates;
    rates.measure(world, 2);
    rates.measure(world, 2);  // known: no time
    const std::lock_guard lock(mutex);
    all.push_back(rates.named());
    if (world.rank() == 0) {
      const auto now = std::chrono::steady_clock::now();
      std::printf("measured in %.2f s\n", std::chrono::duration<double>(now - begin).count());
      for (const auto& [name, rate] : rates.named()) std::printf("%s %.1f\n", name.c_str(), rate);
    }
  });
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].size(), 8u + 2u);
  for (const auto& rates : all) EXPECT_EQ(rates, all[0]);  // also on the rank that only waited
  for (const auto& [name, rate] : all[0]) EXPECT_GT(rate, 0) << name;
}

}  // namespace
}  // namespace harness
