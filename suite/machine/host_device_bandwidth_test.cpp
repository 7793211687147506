// The unit on a GPU, and on the host, where it is skipped.

#include <gtest/gtest.h>

#include "machine/world/binding.h"
#include "suite/testing/on_threads.h"

namespace suite {
namespace {

std::vector<harness::Record> run(bool on_gpu) {
  const auto cases = harness::plan_cases({"host_device_bandwidth"}, {harness::Profile::smoke});
  return on_threads::run(cases, 3, 0.001, {}, on_gpu ? 1 : 0);
}

TEST(HostDeviceBandwidth, PassesOnAGpu) {
  if (machine::cuda::count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto records = run(true);
  EXPECT_EQ(records.size(), 18u);
  const std::string why = machine::why_not_numa_node(0);  // containers may forbid it
  for (const harness::Record& record : records) {
    if (!why.empty() && record.reason == "rank 0: " + why) continue;
    EXPECT_EQ(record.verdict, harness::Ruling::pass) << record.name << ": " << record.reason;
  }
}

TEST(HostDeviceBandwidth, IsSkippedOnTheHost) {
  for (const harness::Record& record : run(false)) {
    EXPECT_EQ(record.verdict, harness::Ruling::skipped) << record.name;
    EXPECT_EQ(record.reason, "rank 0: host_device_bandwidth requires --device cuda (got host)");
  }
}

}  // namespace
}  // namespace suite
