#include "harness/record/summary.h"

#include <gtest/gtest.h>

namespace harness {
namespace {

Record of(Ruling verdict, std::map<std::string, double> counters) {
  Record record;
  record.unit = "unit";
  record.verdict = verdict;
  record.counters = std::move(counters);
  return record;
}

TEST(UnitSummary, ItsNumbersComeFromOneCase) {
  const std::vector<Record> records{of(Ruling::pass, {{"busbw_GBps", 1},
                                                      {"limit_fraction", 0.9},
                                                      {"speedup_over_library", 3},
                                                      {"wire_GBps", 7}}),
                                    of(Ruling::pass, {{"busbw_GBps", 4}, {"limit_fraction", 0.25}}),
                                    of(Ruling::fail, {{"busbw_GBps", 99}, {"limit_fraction", 1}})};
  const Summary summary = summarize({}, records);
  const UnitSummary& unit = summary.units.at(0);
  EXPECT_EQ(unit.best_case, &records[1]);
  EXPECT_EQ(unit.best, "4.00 GB/s");
  EXPECT_EQ(unit.wire, "");
  EXPECT_EQ(unit.limit_fraction, 0.25);
  EXPECT_EQ(unit.speedup, "");
}

TEST(UnitSummary, WithoutRatesTakesTheCaseNearestItsLimit) {
  const std::vector<Record> records{of(Ruling::pass, {{"limit_fraction", 0.5}}),
                                    of(Ruling::pass, {{"limit_fraction", 0.75}}),
                                    of(Ruling::pass, {})};
  const Summary summary = summarize({}, records);
  EXPECT_EQ(summary.units.at(0).best_case, &records[1]);
  EXPECT_EQ(summarize({}, {records[2]}).units.at(0).best_case, nullptr);
}

TEST(Summary, RatesHaveThreeDigits) {
  EXPECT_EQ(rate_text(Rate{0.0123, "GB/s"}), "0.0123 GB/s");
  EXPECT_EQ(rate_text(Rate{9876, "GFLOP/s"}), "9876 GFLOP/s");
  EXPECT_EQ(rate_text(Rate{12345, "tokens/s"}), "12.3k tokens/s");
  EXPECT_EQ(rate_text(Rate{999'960, "tokens/s"}), "1000k tokens/s");
  EXPECT_EQ(rate_text(Rate{1'060'899'396, "tokens/s"}), "1.06G tokens/s");
  EXPECT_EQ(rate_text(Rate{0, "tokens/s"}), "");
}

TEST(Summary, CountsPassedCasesWithoutNumerics) {
  Record judged = of(Ruling::pass, {}), alone = judged, failed = of(Ruling::fail, {});
  judged.oracles = {{Oracle::numerics, Ruling::pass, 0, 0, "right"}};
  alone.oracles = {{Oracle::numerics, Ruling::skipped, 0, 0, "no reference"},
                   {Oracle::determinism, Ruling::pass, 0, 0, "same bits"}};
  failed.oracles = alone.oracles;
  const auto details = [](const std::vector<Record>& records) {
    return summarize({}, records).details;
  };
  EXPECT_EQ(details({judged}).find("not judged"), std::string::npos);
  EXPECT_NE(details({judged, alone, failed}).find("numerics not judged in 1 case"),
            std::string::npos);
}

}  // namespace
}  // namespace harness
