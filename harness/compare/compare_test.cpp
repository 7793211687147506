#include "harness/compare/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "harness/json/json.h"
#include "harness/testing/example_runs.h"

namespace harness {
namespace {

using Random = std::mt19937_64;

// Returns `launches` launches with `cases` cases of about 100 us each and random errors. `shifted`
// is added to the log of the first case's time.
std::vector<Launch> side(int launches, int cases, const std::function<double()>& log_error,
                         double shifted = 0) {
  std::vector<Launch> all(static_cast<std::size_t>(launches));
  for (Launch& launch : all)
    for (int i = 0; i < cases; ++i)
      launch.records.push_back(timed_case(std::to_string(1 << 20 | i),
                                          1e-4 * std::exp(log_error() + (i == 0 ? shifted : 0))));
  return all;
}

std::vector<Launch> with_noise(int launches, int cases, double deviation, Random& engine,
                               double shifted = 0) {
  std::normal_distribution<double> normal(0, deviation);
  return side(
      launches, cases, [&] { return normal(engine); }, shifted);
}

std::vector<Launch> exactly(const std::vector<double>& seconds) {
  std::vector<Launch> launches;
  for (const double one : seconds) launches.emplace_back().records = {timed_case("1048576", one)};
  return launches;
}

CaseTimes only(const std::vector<double>& base, const std::vector<double>& next,
               const CompareOptions& options = {}) {
  return compare(exactly(base), exactly(next), options).times.at(0);
}

TEST(Compare, VerdictsOfOneCase) {
  const std::vector<double> base{1.00, 1.01, 1.02, 1.03, 1.04};
  std::vector<double> slower, faster, same, wide{0.8, 0.9, 1.0, 1.1, 1.3};
  for (const double s : base) {
    slower.push_back(s * 1.2);
    faster.push_back(s / 1.2);
    same.push_back(s * 1.001);
  }
  const CaseTimes one = only(base, slower);
  EXPECT_EQ(one.verdict, TimeVerdict::slower);
  EXPECT_NEAR(one.ratio, 1.2, 1e-9);
  EXPECT_DOUBLE_EQ(one.p, 2 / 252.0);
  EXPECT_EQ(one.p, one.q);
  ASSERT_TRUE(one.interval);
  // The third of 25 differences from either end (table: U = 2 is rejected).
  EXPECT_NEAR(one.interval->low, 1.2 * 1.00 / 1.03, 0.012);
  EXPECT_GT(one.interval->low, 1.1);
  EXPECT_EQ(only(base, faster).verdict, TimeVerdict::faster);
  EXPECT_EQ(only(base, same, {.floor = 0.05}).verdict, TimeVerdict::equivalent);
  EXPECT_EQ(only(base, wide).verdict, TimeVerdict::inconclusive);
  EXPECT_NE(only(base, wide).reason.find("noise"), std::string::npos);
  EXPECT_GT(only(base, wide).launches_wanted, 100);  // an interval of about +-25 %, not +-3 %
}

TEST(Compare, ACertainChangeBelowTheFloorIsNoChange) {
  std::vector<double> base, next;
  for (int i = 0; i < 9; ++i) {
    base.push_back(1 + 1e-4 * i);
    next.push_back(1.01 * (1 + 1e-4 * i));
  }
  const CaseTimes times = only(base, next);  // 1 %; the floor at 1 MiB is 3 %
  EXPECT_LT(times.q, 0.001);
  EXPECT_EQ(times.kind, "message");
  EXPECT_EQ(times.verdict, TimeVerdict::equivalent);
  EXPECT_EQ(only(base, next, {.floor = 0.005}).verdict, TimeVerdict::slower);
}

TEST(Compare, TooFewLaunchesReportTheRequiredNumber) {
  const CaseTimes times = only({1, 1.01, 1.02}, {2, 2.01, 2.02});
  EXPECT_EQ(times.verdict, TimeVerdict::inconclusive);
  EXPECT_DOUBLE_EQ(times.p, 0.1);
  EXPECT_FALSE(times.interval);
  EXPECT_FALSE(times.detectable);
  EXPECT_NE(times.reason.find("(3 vs 3): p is at least 0.1; 4 per side"), std::string::npos)
      << times.reason;
  Random engine(1);
  const RunComparison several =
      compare(with_noise(5, 300, 0.01, engine), with_noise(5, 300, 0.01, engine, 0.5), {});
  EXPECT_EQ(several.times[0].verdict, TimeVerdict::inconclusive);
  EXPECT_NE(several.times[0].reason.find("8 per side"), std::string::npos)
      << several.times[0].reason;
  EXPECT_EQ(only({1}, {2}).verdict, TimeVerdict::inconclusive);
}

// The visible shift is detected, and a slightly smaller one is not.
TEST(Compare, DetectableShiftIsTheThresholdOfTheTest) {
  Random engine(20240620);
  for (int trial = 0; trial < 20; ++trial) {
    const auto base = with_noise(9, 12, 0.01, engine), next = with_noise(9, 12, 0.01, engine);
    const CaseTimes times = compare(base, next, {.floor = 0}).times[0];
    ASSERT_TRUE(times.detectable);
    const auto p_of_larger = [&](double factor) {  // the larger p of both directions
      double largest = 0;
      for (const double direction : {-1.0, 1.0}) {
        auto moved = next;
        for (Launch& launch : moved)
          launch.records[0].seconds *=
              std::exp(-std::log(times.ratio) + direction * std::log1p(*times.detectable) * factor);
        largest = std::max(largest, compare(base, moved, {.floor = 0}).times[0].p);
      }
      return largest;
    };
    EXPECT_LE(p_of_larger(1 + 1e-6), 0.05 / 12);
    EXPECT_GT(p_of_larger(1 - 1e-6), 0.05 / 12);
  }
}

// Both sides are drawn from the same launches, so every reported change is false.
TEST(Compare, EqualSidesRarelyDiffer) {
  Random engine(20240621);
  std::vector<double> measured;
  std::normal_distribution<double> normal(0, 0.02);
  std::exponential_distribution<double> tail(30);
  for (int i = 0; i < 40; ++i) measured.push_back(normal(engine) + (i % 5 == 0 ? tail(engine) : 0));
  std::uniform_int_distribution<std::size_t> pick(0, measured.size() - 1);
  const auto draw = [&] { return measured[pick(engine)]; };
  constexpr int trials = 300;
  int with_false_verdict = 0, small_p = 0, cases = 0;
  for (int trial = 0; trial < trials; ++trial) {
    const RunComparison result = compare(side(9, 10, draw), side(9, 10, draw), {.floor = 0});
    with_false_verdict += result.count(TimeVerdict::slower) + result.count(TimeVerdict::faster) > 0;
    for (const CaseTimes& times : result.times) small_p += times.p <= 0.05;
    cases += static_cast<int>(result.times.size());
  }
  EXPECT_LE(with_false_verdict, trials * 0.05);
  EXPECT_LE(small_p, cases * 0.05 + 3 * std::sqrt(cases * 0.05 * 0.95));
  EXPECT_GE(small_p, cases * 0.02);  // a test that never rejects would pass the above
}

TEST(Compare, FivePercentIsFoundInLowNoiseAndInconclusiveInHighNoise) {
  Random engine(20240622);
  int found = 0, others = 0, in_noise = 0;
  constexpr int trials = 40;
  for (int trial = 0; trial < trials; ++trial) {
    const RunComparison quiet = compare(with_noise(9, 20, 0.01, engine),
                                        with_noise(9, 20, 0.01, engine, std::log(1.05)), {});
    found += quiet.times[0].verdict == TimeVerdict::slower;
    others += quiet.count(TimeVerdict::slower) + quiet.count(TimeVerdict::faster) > 1;
    const RunComparison noisy =
        compare(with_noise(9, 20, 0.1, engine), with_noise(9, 20, 0.1, engine, std::log(1.05)), {});
    in_noise += noisy.times[0].verdict == TimeVerdict::inconclusive;
  }
  EXPECT_EQ(found, trials);
  EXPECT_LE(others, trials * 0.05);
  EXPECT_GE(in_noise, trials - 3);
}

TEST(Compare, RepetitionsDoNotCountAsLaunches) {
  auto base = exactly({1, 1.01, 1.02, 1.03}), next = exactly({2, 2.01, 2.02, 2.03});
  for (int repetition = 1; repetition < 3; ++repetition)
    base[0].records.push_back(timed_case("1048576", 1 + 4 * repetition));
  const CaseTimes times = compare(base, next, {}).times.at(0);
  EXPECT_EQ(times.base, (std::vector<double>{5, 1.01, 1.02, 1.03}));  // the median of 1 5 9
}

TEST(Compare, NumbersAreComparedExactlyAndSeparately) {
  auto base = exactly({1, 1, 1, 1}), next = exactly({1, 1, 1, 1});
  for (Launch& launch : next) {
    launch.records[0].counters["max_error"] = std::nextafter(3.1e-7, 1);
    launch.records[0].counters["busbw_GBps"] = 7;  // rates are not compared exactly
  }
  next[2].records[0].fingerprint = "0";
  base[1].records[0].counters["wire_bytes_measured"] = 9;  // differs within BASE, so unsteady
  const RunComparison result = compare(base, next, {});
  ASSERT_EQ(result.numbers.size(), 3u);
  EXPECT_EQ(result.numbers[0].number, "fingerprint");
  EXPECT_EQ(result.numbers[0].next, "00c0ffee00c0ffee | 0");
  EXPECT_EQ(result.numbers[1].number, "max_error");
  EXPECT_EQ(result.numbers[1].base, "3.1e-07");
  EXPECT_FALSE(result.numbers[1].unsteady);
  EXPECT_TRUE(result.numbers[2].unsteady);
  EXPECT_EQ(result.changed_numbers(), 2);
  EXPECT_EQ(result.count(TimeVerdict::slower), 0);
}

TEST(Compare, AFailureChangesTheVerdictAndHasNoTime) {
  auto base = exactly({1, 1, 1, 1}), next = exactly({1, 1, 1, 1});
  for (Launch& launch : next) {
    Record& record = launch.records[0];
    record.verdict = Ruling::fail;
    record.reason = "numerics: rank 1";
    record.counters.clear();
    record.fingerprint.clear();
  }
  const RunComparison result = compare(base, next, {});
  ASSERT_EQ(result.numbers.size(), 1u);
  EXPECT_EQ(result.numbers[0].number, "verdict");
  EXPECT_EQ(result.numbers[0].next, "fail");
  EXPECT_TRUE(result.times.empty());
  ASSERT_EQ(result.untimed.size(), 1u);
  EXPECT_EQ(result.untimed[0].second, "fail: numerics: rank 1");
}

TEST(Compare, CasesOfOneSideAreNamed) {
  auto base = exactly({1, 1}), next = exactly({1, 1});
  base[0].records.push_back(timed_case("8", 1e-6));
  next[0].records.push_back(timed_case("64", 1e-6));
  base[1].records.push_back(timed_case("128", 1e-6));
  for (Launch& launch : next) launch.records.push_back(timed_case("128", 1e-6));
  const RunComparison result = compare(base, next, {});
  EXPECT_EQ(result.only_base, std::vector{timed_case("8", 1).name});
  EXPECT_EQ(result.only_next, std::vector{timed_case("64", 1).name});
  EXPECT_EQ(result.not_in_all, std::vector{timed_case("128", 1).name});
  EXPECT_NE(text(result, false).find("Only in NEW (1):"), std::string::npos);
  next.resize(1);
  next[0].records = {timed_case("64", 1e-6)};
  EXPECT_EQ(refused([&] { compare(base, next, {}); }),
            "BASE and NEW have no case in common: cases of all_reduce differ at least in bytes; "
            "--factor bytes compares them");
  next[0].records[0].unit = "gemm";
  EXPECT_NE(refused([&] { compare(base, next, {}); }).find("no common unit"), std::string::npos);
  next[0].fields["host"] = "b";  // the difference has priority
  EXPECT_FALSE(compare(base, next, {}).comparable);
}

TEST(Compare, AnAxisMayBeAFactor) {
  std::vector<Launch> base, next;
  for (int i = 0; i < 4; ++i) {
    base.emplace_back().records = {timed_case("8", 1e-6 + 1e-9 * i, "float")};
    next.emplace_back().records = {timed_case("8", 2e-6 + 1e-9 * i, "half")};
  }
  EXPECT_NE(refused([&] { compare(base, next, {}); }).find("no case in common"), std::string::npos);
  const RunComparison result = compare(base, next, {.factors = {"dtype"}});
  ASSERT_EQ(result.times.size(), 1u);
  EXPECT_EQ(result.times[0].name, "all_reduce/algorithm:ring/bytes:8");
  EXPECT_EQ(result.times[0].verdict, TimeVerdict::slower);
  base[0].records.push_back(timed_case("8", 1e-6, "double"));
  EXPECT_NE(refused([&] { compare(base, next, {.factors = {"dtype"}}); }).find("are one case"),
            std::string::npos);
}

TEST(Compare, BooleansMayBe0And1OnOneSide) {
  const auto with = [](const std::string& value, double seconds) {
    std::vector<Launch> launches =
        exactly({seconds, 1.01 * seconds, 1.02 * seconds, 1.03 * seconds, 1.04 * seconds});
    for (Launch& launch : launches) {
      launch.records[0].axes.emplace_back("sequence-parallel", value);
      launch.records[0].name += "/sequence-parallel:" + value;
    }
    return launches;
  };
  const RunComparison found = compare(with("1", 1), with("on", 2), {});
  ASSERT_EQ(found.times.size(), 1u);
  EXPECT_EQ(found.times[0].verdict, TimeVerdict::slower);
  EXPECT_EQ(found.times[0].axes.back().second, "on");
  EXPECT_TRUE(found.only_base.empty() && found.only_next.empty());
  EXPECT_NE(refused([&] { compare(with("0", 1), with("on", 1), {}); }).find("sequence-parallel"),
            std::string::npos);
}

TEST(Compare, UndeclaredDifferencesAreNotComparable) {
  auto base = exactly({1, 1}), next = exactly({1, 1});
  for (Launch& launch : base) launch.fields = {{"host", "a"}, {"software.nccl.loaded", "2.28"}};
  for (Launch& launch : next) launch.fields = {{"host", "a"}, {"software.nccl.loaded", "2.29"}};
  const RunComparison result = compare(base, next, {});
  EXPECT_FALSE(result.comparable);
  EXPECT_NE(text(result, false).find("2.28 -> 2.29"), std::string::npos);
  EXPECT_EQ(text(result, false).find("EQUIVALENT"), std::string::npos);
  EXPECT_TRUE(compare(base, next, {.factors = {"nccl"}}).comparable);
  EXPECT_FALSE(compare(base, next, {.factors = {"host"}}).comparable);
  next[1].fields["host"] = "b";
  const RunComparison mixed = compare(base, next, {.factors = {"nccl"}});
  EXPECT_FALSE(mixed.comparable);
  ASSERT_EQ(mixed.mixed.size(), 1u);
  EXPECT_EQ(mixed.mixed[0].substr(0, 22), "NEW: host is a in  and");
  EXPECT_TRUE(compare(base, next, {.factors = {"nccl", "host"}}).comparable);
}

TEST(Compare, TimingMethodsMustMatch) {
  auto base = exactly({1, 1}), next = exactly({1, 1});
  next[1].records[0].timing = "window";
  EXPECT_FALSE(compare(base, next, {}).comparable);
  EXPECT_TRUE(compare(base, next, {.factors = {"timing"}}).comparable);
}

TEST(Compare, TextFitsTheConsoleAndJsonHoldsAll) {
  Random engine(20240623);
  auto base = with_noise(9, 60, 0.02, engine), next = with_noise(9, 60, 0.02, engine, 0.3);
  for (auto* side : {&base, &next})
    for (Launch& launch : *side) launch.fields = {{"software.kernel", std::string(150, 'k')}};
  for (Launch& launch : next) launch.fields["software.kernel"] += "x";
  const RunComparison result = compare(base, next, {.factors = {"kernel"}});
  for (const bool all : {false, true}) {
    std::istringstream lines(text(result, all));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  }
  EXPECT_NE(text(result, false).find("bytes:1048576"), std::string::npos);
  EXPECT_EQ(text(result, false).find("bytes:1048577"), std::string::npos);  // some of the 60 cases
  EXPECT_NE(text(result, true).find("bytes:1048577"), std::string::npos);
  EXPECT_NE(text(result, false).find("all_reduce algorithm:ring dtype:float\n"), std::string::npos);
  const auto parsed = Json::parse(json(result));
  EXPECT_EQ(parsed["schema"], "shardmark-compare/1");
  EXPECT_EQ(parsed["times"].size(), 60u);
  EXPECT_EQ(parsed["times"][0]["verdict"], "SLOWER");
  EXPECT_EQ(parsed["times"][0]["base_s"].size(), 9u);
  EXPECT_EQ(parsed["differences"][0]["declared"], true);
}

TEST(Floors, DependOnTheKindOfWork) {
  const auto kind = [](std::map<std::string, double> counters) {
    Record record;
    record.counters = std::move(counters);
    return floor_of(record).kind;
  };
  EXPECT_EQ(kind({{"bytes", 8}, {"busbw_GBps", 1}}), "latency");
  EXPECT_EQ(kind({{"bytes", 65536}}), "message");
  EXPECT_EQ(kind({{"bytes", 67108864}}), "bandwidth");
  EXPECT_EQ(kind({{"messages_expected", 2}, {"wire_bytes_expected", 0}}), "latency");  // a barrier
  EXPECT_EQ(kind({{"flops", 1e9}}), "computation");
  EXPECT_EQ(kind({{"flops", 1e9}, {"tokens_per_second", 7}, {"bytes", 8}}), "step");
  EXPECT_EQ(kind({{"messages_expected", 0}}), "other");
  for (const Floor& floor : floors()) {
    EXPECT_GT(floor.ratio, 0);
    EXPECT_FALSE(floor.reason.empty());
  }
}

}  // namespace
}  // namespace harness
