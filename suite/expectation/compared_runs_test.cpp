#include "suite/expectation/compared_runs.h"

#include <gtest/gtest.h>

#include <string>

namespace suite {
namespace {

using harness::Record;

// A product on one core of 100 GFLOP/s, without start-up: 2 m n k / 1e11 s.
predict::Cluster cluster() {
  predict::Cluster one = predict::read_cluster("two_cores");
  one.gpu.float32 = 1e11;
  one.gpu.gemm_fraction = 1;
  one.gpu.gemm_depth = one.gpu.kernel_s = 0;
  one.gpu.multiprocessors = 1;
  one.gpu.bandwidth = 1e15;
  one.gpu.bandwidth_fraction = 1;
  return one;
}

Record product(const std::string& shape, double seconds) {
  Record record;
  record.unit = "gemm";
  record.name = "gemm/shape:" + shape;
  record.axes = {{"shape", shape}, {"dtype", "float"}, {"ranks", "1"}};
  record.verdict = harness::Ruling::pass;
  record.seconds = seconds;
  record.counters["flops"] = 1;
  return record;
}

TEST(ComparedRuns, ErrorsAreThoseOfTheClosedForm) {
  const double exact = 2.0 * 1024 * 1024 * 1024 / 1e11;
  std::vector<Record> records{product("1024x1024x1024", exact), product("1024x1024x2048", exact),
                              product("1024x1024x512", exact)};
  const std::vector<ComparedCase> cases = compare_runs(records, Expectation(cluster(), false, {}));
  ASSERT_EQ(cases.size(), 3U);
  EXPECT_NEAR(cases[0].error(), 0, 1e-9);
  EXPECT_NEAR(cases[1].error(), 1, 1e-9);
  EXPECT_NEAR(cases[2].error(), -0.5, 1e-9);
  EXPECT_NE(text(cases).find("computation, 3 cases: mean absolute error 50.0 %, worst +100.0 % "
                             "(gemm/shape:1024x1024x2048)"),
            std::string::npos)
      << text(cases);
}

TEST(ComparedRuns, LeaveOutWhatShowsNoSpeed) {
  Record shared = product("64x64x64", 1e-3), failed = shared, both = shared, unknown = shared;
  shared.shares_cores = true;
  both.oversubscribed = true;
  failed.verdict = harness::Ruling::fail;
  unknown.unit = "layer_norm";
  EXPECT_TRUE(
      compare_runs({shared, failed, both, unknown}, Expectation(cluster(), false, {})).empty());
}

TEST(ComparedRuns, AFigureHasTheCasesInOrderOfTime) {
  const std::vector<ComparedCase> cases{
      {"b", "step", 2e-2, 1e-2}, {"a", "step", 1e-2, 1.5e-2}, {"c", "message", 1, 1}};
  const std::vector<predict::ScalingFigure> all = figures(cases);
  ASSERT_EQ(all.size(), 1U);
  ASSERT_EQ(all[0].lines.size(), 2U);
  EXPECT_EQ(all[0].lines[0].x, (std::vector<double>{1, 2}));
  EXPECT_EQ(all[0].lines[0].y, (std::vector<double>{10, 20}));
  EXPECT_EQ(all[0].lines[1].y, (std::vector<double>{15, 10}));
  EXPECT_NE(text(cases).find("   -50.0 %  b\n"), std::string::npos) << text(cases);
}

}  // namespace
}  // namespace suite
