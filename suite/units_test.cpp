// The smoke cases of every unit, on threads.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "harness/compare/comparable.h"
#include "suite/testing/on_threads.h"
#include "zero/offload/io_ring.h"

namespace suite {
namespace {

class EveryUnit : public ::testing::TestWithParam<std::string> {};

// Under the sanitizer the references in double take most of the time, and many cases share the code
// that it checks. A case of gpt_step trains two models. Then a unit runs this many of its cases,
// evenly spread; with SHARDMARK_SMOKE=all every case.
std::size_t most_cases(const std::string& unit) {
  if (std::getenv("SHARDMARK_SMOKE")) return std::numeric_limits<std::size_t>::max();
#if defined(__SANITIZE_ADDRESS__)
  return 8;
#else
  return unit == "gpt_step" ? 33 : std::numeric_limits<std::size_t>::max();
#endif
}

std::vector<harness::PlannedCase> spread(std::vector<harness::PlannedCase> cases,
                                         std::size_t most) {
  const std::size_t all = cases.size();
  if (all <= most) return cases;
  std::vector<harness::PlannedCase> some;
  for (std::size_t i = 0; i < most; ++i) some.push_back(std::move(cases[i * all / most]));
  fmt::print("{} of {} cases\n", some.size(), all);
  return some;
}

TEST_P(EveryUnit, PassesItsSmokeCasesOnThreads) {
  const auto cases =
      spread(harness::plan_cases({GetParam()}, {harness::Profile::smoke}), most_cases(GetParam()));
  const int ranks = std::ranges::max(cases, {}, &harness::PlannedCase::ranks).ranks;
  bool passed = false;
  for (const harness::Record& record : on_threads::run(cases, ranks, 0.001)) {
    EXPECT_NE(record.verdict, harness::Ruling::fail) << record.name << ": " << record.reason;
    passed = passed || record.verdict == harness::Ruling::pass;
  }
  // Containers usually forbid io_uring. Threads have no GPU here.
  const bool may_skip = GetParam() == "host_device_bandwidth" ||
                        (GetParam() == "nvme_bandwidth" && !zero::IoRing::why_not().empty());
  EXPECT_TRUE(passed || may_skip);
}

std::vector<std::string> unit_names() {
  std::vector<std::string> names;
  for (const harness::Family* family : harness::families()) names.emplace_back(family->name());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Suite, EveryUnit, ::testing::ValuesIn(unit_names()),
                         [](const auto& info) { return info.param; });

TEST(Units, NamesOfCasesAreUniqueShortAndContainAllAxes) {
  std::vector<std::size_t> lengths;
  std::set<std::string> names;
  for (const auto& one : harness::plan_cases({}, {harness::Profile::quick})) {
    EXPECT_TRUE(names.insert(one.name).second) << one.name;
    EXPECT_EQ(harness::read_case_name(one.name).axes, one.axes) << one.name;
    lengths.push_back(one.name.size());
  }
  const auto middle = lengths.begin() + std::ssize(lengths) / 2;
  std::ranges::nth_element(lengths, middle);
  EXPECT_LE(*middle, 60u);
}

// The compared run may be older than an axis.
TEST(Units, NamesOfOlderRunsAreTheSame) {
  for (const auto& one : harness::plan_cases({"gpt_step", "mlp"}, {harness::Profile::quick})) {
    std::string all_axes = one.unit;
    for (const auto& [axis, value] : one.axes) all_axes += fmt::format("/{}:{}", axis, value);
    EXPECT_EQ(harness::current_case_name(all_axes), one.name);
    EXPECT_EQ(harness::current_case_name(one.name), one.name);
  }
}

// A launcher's ranks are forked, and CUDA does not work in a child of a process that used it.
TEST(Units, PlanningAsksNoGpu) {
  const bool used = machine::cuda::used();
  for (const auto device : {machine::Device::Kind::host, machine::Device::Kind::cuda})
    harness::plan_cases({}, {harness::Profile::quick, {}, device});
  EXPECT_EQ(machine::cuda::used(), used);
}

TEST(Units, AreRegistered) { EXPECT_GE(unit_names().size(), 42u); }

}  // namespace
}  // namespace suite
