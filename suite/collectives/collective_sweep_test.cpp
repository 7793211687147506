// Cases of the collectives that flags select and that are not in a slice.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "suite/testing/on_threads.h"

namespace suite {
namespace {

using on_threads::refusal;
using on_threads::run;
using on_threads::sanitized;

TEST(CollectiveSweep, EveryAlgorithmPassesWithEveryDtypeAndReduction) {
  for (const char* unit : {"all_reduce", "reduce_scatter", "reduce", "all_gather"}) {
    harness::AxisFlags flags = {{"transport", "shared_memory"}, {"ranks", "3"}, {"bytes", "1000"}};
    if (sanitized) flags["algorithm"] = "ring,direct";
    if (unit == std::string("reduce")) flags["algorithm"] = "ring,direct,binomial_tree";
    const auto cases = harness::plan_cases({unit}, {harness::Profile::acceptance, flags});
    for (const harness::Record& record : run(cases, 3))
      EXPECT_EQ(record.verdict, harness::Ruling::pass) << record.name << ": " << record.reason;
  }
}

// With zero elements, the number of messages follows the formula, and each message has 0 bytes.
TEST(CollectiveSweep, CallsWithoutElementsAreJudged) {
  for (const char* unit :
       {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter",
        "all_to_all", "all_to_all_v", "send_receive", "compressed_all_reduce"}) {
    harness::AxisFlags flags = {{"ranks", "1,3"}, {"bytes", "0"}, {"transport", "shared_memory"}};
    const bool compressed = unit == std::string("compressed_all_reduce");
    if (!compressed) flags["dtype"] = "float,int8";
    if (!compressed && std::string(unit).find("reduce") != std::string::npos)
      flags["reduction"] = "avg";
    const auto cases = harness::plan_cases({unit}, {harness::Profile::acceptance, flags});
    EXPECT_GT(cases.size(), 1U) << unit;
    for (const harness::Record& record : run(cases, 3, 0.001)) {
      EXPECT_EQ(record.verdict, harness::Ruling::pass) << record.name << ": " << record.reason;
      EXPECT_EQ(record.counters.at("wire_bytes_measured"), 0) << record.name;
      if (compressed) continue;  // does not send empty messages
      const bool several = record.name.find("ranks:3") != std::string::npos;
      EXPECT_EQ(record.counters.at("messages_measured") > 0, several) << record.name;
    }
  }
}

TEST(CollectiveSweep, EveryInnerIsJudged) {
  for (const auto& [ranks, divisors] : std::vector<std::pair<int, std::string>>{
           {4, "1,2,4"}, {6, "1,2,3,6"}, {8, "1,2,4,8"}, {12, "1,2,3,4,6,12"}}) {
    if (sanitized && ranks > 4) continue;
    for (const char* unit : {"all_reduce", "all_gather", "reduce_scatter", "broadcast"}) {
      const bool rows = unit != std::string("broadcast");
      const harness::AxisFlags flags = {{"transport", "shared_memory"},
                                        {"ranks", std::to_string(ranks)},
                                        {"bytes", "4036"},
                                        {"dtype", "float"},
                                        {"algorithm", rows ? "hierarchical,mesh" : "hierarchical"},
                                        {"inner", divisors}};
      const auto cases = harness::plan_cases({unit}, {harness::Profile::quick, flags});
      // Two algorithms, or out of place and in place.
      EXPECT_EQ(cases.size(), 2 * static_cast<std::size_t>(std::ranges::count(divisors, ',') + 1));
      for (const harness::Record& record : run(cases, ranks, 0.001))
        EXPECT_EQ(record.verdict, harness::Ruling::pass) << record.name << ": " << record.reason;
    }
  }
}

TEST(CollectiveSweep, RejectsInvalidInner) {
  EXPECT_EQ(refusal("all_reduce", {{"inner", "3"}, {"ranks", "8"}, {"algorithm", "mesh"}}),
            "inner 3 does not divide 8 ranks (unit all_reduce)");
  EXPECT_EQ(refusal("all_reduce", {{"inner", "2"}, {"algorithm", "ring"}}),
            "algorithm ring does not read inner (unit all_reduce)");
  EXPECT_EQ(refusal("all_reduce", {{"inner", "two"}}),
            "inner two: inner is 'two'; expected a number of ranks or auto (unit all_reduce)");
  EXPECT_EQ(refusal("all_reduce", {{"inner", "1,2"}, {"ranks", "4"}}), "accepted");
}

// On the host, requested transports between devices are skipped, and sweeps omit them by default.
TEST(CollectiveSweep, SkipTransportsBetweenDevicesOnTheHost) {
  for (const char* transport : {"cuda_ipc", "nccl"}) {
    const harness::AxisFlags flags = {{"transport", transport}, {"ranks", "2"}};
    std::size_t skipped = 0;
    const auto cases =
        harness::plan_cases({"all_reduce", "barrier"}, {harness::Profile::quick, flags});
    for (const harness::Record& record : run(cases, 2)) {
      EXPECT_EQ(record.verdict, harness::Ruling::skipped) << record.name;
      EXPECT_EQ(record.reason,
                std::string("rank 0: transport ") + transport + " requires --device cuda");
      ++skipped;
    }
    EXPECT_EQ(skipped, cases.size());
  }
  const auto transports = [](machine::Device::Kind device) {
    std::set<std::string> found;
    for (const auto& planned :
         harness::plan_cases({"all_reduce"}, {harness::Profile::quick, {}, device}))
      for (const auto& [axis, value] : planned.axes)
        if (axis == "transport") found.insert(value);
    return found;
  };
  EXPECT_EQ(transports(machine::Device::Kind::host),
            (std::set<std::string>{"mpi", "shared_memory"}));
  const std::set<std::string> on_gpus = transports(machine::Device::Kind::cuda);
  // Also with one visible GPU for each rank: a case decides whether its ranks can use them.
  EXPECT_EQ(on_gpus, (std::set<std::string>{"cuda_ipc", "nccl"}));
}

}  // namespace
}  // namespace suite
