// Every unit's smoke cases, on ranks that are threads.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "suite/testing/on_threads.h"
#include "zero/offload/io_ring.h"

namespace suite {
namespace {

class EveryUnit : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryUnit, PassesItsSmokeCasesOnThreads) {
  const auto cases = harness::plan_cases({GetParam()}, {harness::Profile::smoke});
  const int ranks = std::ranges::max(cases, {}, &harness::PlannedCase::ranks).ranks;
  bool passed = false;
  for (const harness::Record& record : on_threads::run(cases, ranks, 0.001)) {
    EXPECT_NE(record.verdict, harness::Ruling::fail) << record.name << ": " << record.reason;
    passed = passed || record.verdict == harness::Ruling::pass;
  }
  // Containers that forbid io_uring are usual.
  EXPECT_TRUE(passed || (GetParam() == "nvme_bandwidth" && !zero::IoRing::why_not().empty()));
}

std::vector<std::string> unit_names() {
  std::vector<std::string> names;
  for (const harness::Family* family : harness::families()) names.emplace_back(family->name());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Suite, EveryUnit, ::testing::ValuesIn(unit_names()),
                         [](const auto& info) { return info.param; });

TEST(Units, AreRegistered) { EXPECT_GE(unit_names().size(), 42u); }

}  // namespace
}  // namespace suite
