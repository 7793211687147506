#include <gtest/gtest.h>
#include <sqlite3.h>

#include <array>
#include <cmath>
#include <random>

#include "harness/history/exports.h"
#include "harness/history/store.h"
#include "harness/history/track.h"
#include "harness/json/json.h"
#include "harness/testing/example_runs.h"

namespace harness {
namespace {

TEST(ChangePoints, FoundExactlyAtChangesOfTheLevel) {
  std::mt19937_64 engine(20240702);
  std::normal_distribution<double> normal(0, 0.02);
  // The larger change is the second one in the first series, and the first one in the second
  // series.
  for (const auto& levels : {std::array{1.0, 1.1, 0.9}, {0.9, 1.1, 1.05}}) {
    std::vector<double> values;
    for (const double level : levels)
      for (int i = 0; i < 20; ++i) values.push_back(level * std::exp(normal(engine)));
    values[7] = 9;  // an outlier is not a level
    EXPECT_EQ(change_points(values), (std::vector<std::size_t>{20, 40})) << levels[0];
  }
  EXPECT_TRUE(change_points(std::vector<double>(50, 1.0)).empty());
  EXPECT_TRUE(change_points({}).empty());
  // With two values per level, a change cannot be distinguished from chance.
  EXPECT_TRUE(change_points(std::vector<double>{1, 1.01, 5, 5.01}).empty());
  EXPECT_EQ(
      change_points(std::vector<double>{1, 1.1, 1.2, 1.3, 1.4, 1.5, 5, 5.1, 5.2, 5.3, 5.4, 5.5}),
      std::vector<std::size_t>{6});
}

TEST(ChangePoints, AreSeldomFoundInNoise) {
  std::mt19937_64 engine(20240703);
  std::normal_distribution<double> normal;
  int found = 0;
  constexpr int trials = 300;
  for (int trial = 0; trial < trials; ++trial) {
    std::vector<double> values(15);
    for (double& value : values) value = normal(engine);
    found += !change_points(values).empty();
  }
  EXPECT_LE(found, trials * 0.01 + 3 * std::sqrt(trials * 0.01 * 0.99));
}

Launch launch_of(int day, double seconds, const std::string& nccl = "2.28") {
  Launch launch;
  launch.date = fmt::format("2026-11-{:02}T10:00:00+00:00", day);
  launch.path = fmt::format("runs/{}", day);
  launch.fields = {{"software.nccl.loaded", nccl},
                   {"software.shardmark.commit", std::to_string(day)}};
  launch.records = {timed_case("8", seconds)};
  return launch;
}

TEST(History, KeepsEachRunOnceAcrossPrograms) {
  const RunFolder folder;
  const std::string file = folder.path("history.sqlite");
  {
    History history(file);
    EXPECT_TRUE(history.add(launch_of(2, 2e-6)));
    EXPECT_TRUE(history.add(launch_of(1, 1e-6)));
    EXPECT_FALSE(history.add(launch_of(2, 2e-6)));
  }
  History history(file);
  Launch failing = launch_of(3, 3e-6);
  failing.records[0].verdict = Ruling::fail;
  EXPECT_TRUE(history.add(failing));
  const auto runs = history.runs();
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].path, "runs/1");  // by date, not by insertion
  EXPECT_EQ(runs[2].failed, 1);
  EXPECT_EQ(runs[0].fields, launch_of(1, 1e-6).fields);
  const auto points = history.series(timed_case("8", 1).name);
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[1].seconds, 2e-6);
}

TEST(History, CasesOfOlderRunsContinueUnderTheirNewNames) {
  const RunFolder folder;
  const std::string file = folder.path("history.sqlite");
  const auto launch = [](int day, const char* value) {
    Launch one = launch_of(day, day * 1e-6);
    one.records[0].unit = "mlp";
    one.records[0].axes = {{"sequence-parallel", value}};
    return one;
  };
  History(file).add(launch(1, "on"));
  sqlite3* stored = nullptr;
  ASSERT_EQ(sqlite3_open(file.c_str(), &stored), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(stored, "UPDATE case_time SET name = 'mlp/sequence-parallel:1'", nullptr,
                         nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(stored);
  History history(file);
  EXPECT_TRUE(history.add(launch(2, "1")));
  EXPECT_FALSE(history.add(launch(2, "1")));
  EXPECT_TRUE(history.add(launch(3, "on")));
  EXPECT_EQ(history.cases(), std::vector<std::string>{"mlp/sequence-parallel:on"});
  EXPECT_EQ(history.series("mlp/sequence-parallel:on").size(), 3u);
}

TEST(History, RejectsInvalidFilesAndUnknownCases) {
  const RunFolder folder;
  folder.put("text", std::string(5000, 'x'));
  EXPECT_NE(refused([&] { History(folder.path("text")); }).find("text: "), std::string::npos);
  EXPECT_NE(refused([&] { History(folder.path("no/file")); }).find("no/file"), std::string::npos);
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(folder.path("other").c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "CREATE TABLE run(x)", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(other);
  EXPECT_NE(refused([&] { History(folder.path("other")); }).find("of another program"),
            std::string::npos);
  History history(folder.path("history.sqlite"));
  history.add(launch_of(1, 1e-6));
  const std::string name = timed_case("8", 1).name;
  EXPECT_NE(refused([&] { track_of(history, name + "8"); }).find("did you mean '" + name),
            std::string::npos);
}

TEST(Track, BreaksSeparateLevelsWithoutAnAlarm) {
  const RunFolder folder;
  History history(folder.path("history.sqlite"));
  for (int day = 1; day <= 24; ++day)
    history.add(launch_of(day,
                          (day <= 8    ? 1e-6
                           : day <= 16 ? 3e-6
                                       : 4e-6) *
                              (1 + day * 1e-3),
                          day <= 8 ? "2.28" : "2.29"));
  const Track track = track_of(history, timed_case("8", 1).name);
  ASSERT_EQ(track.runs.size(), 24u);
  for (std::size_t i = 0; i < track.runs.size(); ++i) {
    EXPECT_EQ(track.runs[i].breaks.empty(), i != 8) << i;  // a new commit is not a break
    EXPECT_EQ(track.runs[i].change, i == 16) << i;
  }
  EXPECT_NE(text(track).find("-- software.nccl.loaded: 2.28 -> 2.29"), std::string::npos);
  EXPECT_NE(text(track).find("** level 3.04 us -> 4.08 us (+34.4 %)"), std::string::npos)
      << text(track);
}

class Exports : public testing::Test {
 protected:
  Exports() {
    for (int day = 1; day <= 3; ++day) {
      Launch launch = launch_of(day, day * 1e-6);
      launch.fields["host"] = "node \"a\"";
      launch.records.push_back(timed_case("64", day == 2 ? 0 : 8e-6));
      launch.records.back().verdict = day == 2 ? Ruling::fail : Ruling::pass;
      launch.records.push_back(timed_case("512", 0));
      launch.records.back().verdict = Ruling::skipped;
      history_.add(launch);
    }
  }
  std::string text(const char* format, const std::vector<std::string>& cases = {}) const {
    return exported(history_, parse_export_format(format), history_.runs(), cases);
  }

  const RunFolder folder_;
  History history_{folder_.path("history.sqlite")};
  const std::string eight_ = timed_case("8", 1).name, more_ = timed_case("64", 1).name;
};

TEST_F(Exports, ForGoogleBenchmark) {
  const auto json = Json::parse(text("google_benchmark"));
  EXPECT_EQ(json["context"]["date"], "2026-11-03T10:00:00+00:00");
  ASSERT_EQ(json["benchmarks"].size(), 5u);  // 2 and 3 repetitions, only passed cases
  const auto& last = json["benchmarks"][4];
  EXPECT_EQ(last["name"], eight_);
  EXPECT_EQ(last["repetitions"], 3);
  EXPECT_EQ(last["repetition_index"], 2);
  EXPECT_DOUBLE_EQ(last["real_time"].get<double>(), 3000);
  EXPECT_EQ(last["time_unit"], "ns");
}

TEST_F(Exports, ForBencher) {
  const auto json = Json::parse(text("bencher"));
  ASSERT_EQ(json.size(), 2u);
  const auto& latency = json.at(eight_).at("latency");
  EXPECT_DOUBLE_EQ(latency.at("value").get<double>(), 2000);
  EXPECT_DOUBLE_EQ(latency.at("lower_value").get<double>(), 1000);
  EXPECT_DOUBLE_EQ(latency.at("upper_value").get<double>(), 3000);
}

TEST_F(Exports, ForOtava) {
  EXPECT_EQ(text("otava", {eight_, more_}), "time,commit,run," + more_ + "," + eight_ +
                                                "\n2026-11-01T10:00:00+00:00,1,1,8e-06,1e-06\n"
                                                "2026-11-02T10:00:00+00:00,2,2,8e-06,2e-06\n"
                                                "2026-11-03T10:00:00+00:00,3,3,8e-06,3e-06\n");
}

TEST_F(Exports, ForPrometheus) {
  const std::string page = text("prometheus");
  for (const std::string& line :
       {std::string("shardmark_run_timestamp_seconds 1793700000"),
        std::string(R"(shardmark_run_info{host="node \"a\"",commit="3"} 1)"),
        std::string(R"(shardmark_run_cases{verdict="skipped"} 1)"),
        fmt::format(R"(shardmark_case_passed{{unit="all_reduce",case="{}"}} 1)", more_),
        fmt::format(R"(shardmark_case_seconds{{unit="all_reduce",case="{}"}} 8e-06)", more_)})
    EXPECT_NE(page.find("\n" + line + "\n"), std::string::npos) << line << "\n" << page;
}

TEST_F(Exports, RejectUnknownFormatsAndCases) {
  EXPECT_EQ(refused([&] { text("prometeus"); }),
            "unknown --format 'prometeus'; did you mean 'prometheus'?");
  EXPECT_NE(refused([&] { text("otava", {eight_ + "0"}); }).find("did you mean"),
            std::string::npos);
  EXPECT_NE(refused([&] {
              exported(History(folder_.path("none")), ExportFormat::otava, {}, {});
            }).find("no run"),
            std::string::npos);
}

}  // namespace
}  // namespace harness
