#include "harness/run/inject.h"

#include <gtest/gtest.h>

#include <mutex>
#include <optional>

namespace harness {
namespace {

// Ranks are threads here. A fault of one rank does not affect another rank.
TEST(Inject, EveryRankHasItsOwnFaults) {
  std::mutex mutex;  // faults of links and devices still belong to the process
  machine::run_ranks(2, [&](machine::World& world) {
    const Fault fault = parse_fault("wrong_version:rank=1,library=nccl,version=2.18.3");
    std::optional<Injection> injection;
    {
      const std::lock_guard lock(mutex);
      injection.emplace(std::vector{fault}, world);
    }
    *injection->sample() = world.rank();
    world.barrier(world.group());
    EXPECT_EQ(*injection->sample(), world.rank());
    EXPECT_EQ(injection->texts(), std::vector{fault.text});
    const InjectedVersions expected{{"nccl", "2.18.3"}};
    EXPECT_EQ(injection->versions(), world.rank() == 1 ? expected : InjectedVersions{});
    const std::string text = fingerprint_json(world, {}, injection->versions());
    EXPECT_EQ(text.find("2.18.3") != std::string::npos, world.rank() == 1);
    const std::lock_guard lock(mutex);
    injection.reset();
  });
}

TEST(Inject, RejectsMalformedFaults) {
  const auto refused = [](const char* text) -> std::string {
    try {
      parse_fault(text);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refused("die:rank=one,iteration=2"),
            "--inject die:rank=one,iteration=2: rank is 'one'; expected a whole number (example: "
            "rank=1)");
  EXPECT_EQ(refused("die:rank=1.5,iteration=2"),
            "--inject die:rank=1.5,iteration=2: rank is '1.5'; expected a whole number (example: "
            "rank=1)");
  EXPECT_EQ(refused("hang:rank=1,rank=2"), "--inject hang:rank=1,rank=2: 'rank' is given twice");
  EXPECT_EQ(refused("slow_link:ranks=0-1,rate=50MB"),
            "--inject slow_link:ranks=0-1,rate=50MB: rate is '50MB'; expected a rate (example: "
            "rate=50MB/s)");
}

}  // namespace
}  // namespace harness
