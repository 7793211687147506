#include "harness/run/google_front.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "harness/json/json.h"

namespace harness {
namespace {

// Google Benchmark warns of large families on the error stream.
TEST(GoogleFront, ReportsManyCasesByTheirNames) {
  std::vector<PlannedCase> cases(250);
  std::vector<std::size_t> selected;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    cases[i].name = fmt::format("toy/bytes:{}", i);
    if (i != 7) selected.push_back(i);
  }
  Record record;
  record.verdict = Ruling::pass;
  record.seconds = 1e-3;
  std::vector<std::size_t> run;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  GoogleFront({"--benchmark_format=json"})
      .run(
          cases, selected,
          [&](std::size_t i, int) {
            run.push_back(i);
            return &record;
          },
          [] { return std::string(); });
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  const auto printed = Json::parse(testing::internal::GetCapturedStdout());
  EXPECT_EQ(run, selected);
  ASSERT_EQ(printed["benchmarks"].size(), selected.size());
  for (std::size_t i = 0; i < selected.size(); ++i) {
    EXPECT_EQ(printed["benchmarks"][i]["name"], cases[selected[i]].name);
    EXPECT_EQ(printed["benchmarks"][i]["family_index"], static_cast<int>(selected[i]));
  }
}

}  // namespace
}  // namespace harness
