#include "harness/report/console.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ranges>
#include <sstream>

#include "harness/record/summary.h"
#include "machine/base/error.h"

namespace harness {
namespace {

Record record(const std::string& unit, int bytes, Ruling verdict, const std::string& reason = "") {
  Record one;
  one.unit = unit;
  one.name = unit + "/ranks:2/bytes:" + std::to_string(bytes);
  one.verdict = verdict;
  one.reason = reason;
  if (verdict != Ruling::skipped) one.seconds = 1.05e-4;
  return one;
}

class ConsoleTest : public testing::Test {
 protected:
  void SetUp() override { out_ = ::open_memstream(&text_, &size_); }
  void TearDown() override {
    std::fclose(out_);
    std::free(text_);
  }
  std::string taken() {
    std::fflush(out_);
    const std::string all(text_, size_);
    const std::string fresh = all.substr(seen_);
    seen_ = all.size();
    return fresh;
  }
  Terminal terminal(int width) {
    return {true, false, [width] { return width; }};
  }
  std::function<double()> clock() {
    return [this] { return now_; };
  }
  char* text_ = nullptr;
  std::size_t size_ = 0, seen_ = 0;
  std::FILE* out_ = nullptr;
  double now_ = 100;
};

TEST_F(ConsoleTest, EveryCaseGetsAPlainLineWithoutATerminal) {
  Console console(out_, {}, {}, clock());
  console.start(3);
  console.case_started("all_reduce/ranks:2/bytes:8");
  EXPECT_EQ(taken(), "");
  Record passed = record("all_reduce", 8, Ruling::pass);
  passed.counters["busbw_GBps"] = 4.5921;
  passed.counters["wire_GBps"] = 3.0614;
  console.case_done(passed);
  EXPECT_EQ(taken(), "pass    all_reduce/ranks:2/bytes:8  105 us  4.59 GB/s  wire 3.06 GB/s\n");
  console.case_done(record("all_reduce", 16, Ruling::fail, "rank 1:\nelement 3\x1b[31m"));
  EXPECT_EQ(taken(), "FAIL    all_reduce/ranks:2/bytes:16  105 us  (rank 1: element 3 [31m)\n");
  console.case_done(record("ring", 16, Ruling::skipped, "needs 4 GPUs, found 0"));
  EXPECT_EQ(taken(), "skipped ring/ranks:2/bytes:16  (needs 4 GPUs, found 0)\n");
}

TEST_F(ConsoleTest, TrainingShowsItsLosses) {
  Console console(out_, {}, {}, clock());
  console.start(1);
  console.case_started("gpt_step/ranks:2/bytes:8");
  Record trained = record("gpt_step", 8, Ruling::pass);
  trained.losses = {5.59191, 5.37};
  console.case_done(trained);
  EXPECT_EQ(taken(),
            "pass    gpt_step/ranks:2/bytes:8  105 us\n        loss by step: 5.5919 5.3700\n");
}

TEST_F(ConsoleTest, SlowPairsAreNamedOnOneLine) {
  Record slow = record("link_matrix", 8, Ruling::pass);
  slow.counters["pair_GBps"] = 12;
  slow.link_matrix.hosts = {"node-a", "node-a", "node-b"};
  slow.link_matrix.slow_pairs = {{0, 2, "bandwidth", 3.125, 12, 20},
                                 {2, 1, "latency", 55.5, 4, 9},
                                 {1, 2, "latency", 10, 4, 5}};
  const std::string line =
      "        slow pairs: 0 (node-a) to 2 (node-b) bandwidth 3.12 of 12.0 GB/s, "
      "2 (node-b) to 1 (node-a) latency 55.5 of 4.00 us, "
      "1 (node-a) to 2 (node-b) latency 10.0 of 4.00 us";
  {
    Console console(out_, {}, {}, clock());
    console.start(1);
    console.case_done(slow);
    EXPECT_EQ(taken(), "pass    link_matrix/ranks:2/bytes:8  105 us  12.0 GB/s\n" + line + "\n");
  }
  // A terminal also shows them, with any number of cases, and at most as many as fit on a line.
  slow.link_matrix.slow_pairs.push_back({1, 0, "latency", 9, 4, 4});
  slow.link_matrix.slow_pairs.push_back({0, 1, "latency", 9, 4, 4});
  Console console(out_, terminal(80), {}, clock());
  console.start(100);
  taken();
  console.case_done(slow);
  EXPECT_NE(taken().find(line + ", and 2 more\n"), std::string::npos);
}

TEST_F(ConsoleTest, ALongCaseShowsItsMedianSoFar) {
  for (const bool interactive : {false, true}) {
    Console console(out_, interactive ? terminal(120) : Terminal{}, {}, clock());
    console.start(1);
    console.case_started("training_speed/ranks:2");
    taken();
    now_ += 9;
    console.case_sampled(std::array{6.25});
    EXPECT_EQ(taken(), "");
    now_ += 6;
    console.case_sampled(std::array{6.25, 6.75});
    EXPECT_EQ(taken(), interactive ? "\r[....................]   0%  0/1  training_speed/ranks:2"
                                     "  6.50 s so far (2 samples)\x1b[K"
                                   : "running training_speed/ranks:2  6.50 s so far (2 samples)\n");
    now_ += 6;
    console.case_sampled(std::array{6.25, 6.75, 6.5});
    EXPECT_EQ(taken(), "");  // too soon after the last
    console.case_started("training_speed/ranks:4");
    now_ += 1;
    console.case_done(record("training_speed", 8, Ruling::pass));
    EXPECT_EQ(taken().find("so far"), std::string::npos);
  }
}

TEST_F(ConsoleTest, ATerminalGetsOneLineRedrawn) {
  Console console(out_, terminal(80), {}, clock());
  console.start(4);
  EXPECT_EQ(taken(), "\r[....................]   0%  0/4\x1b[K");
  now_ += 1;
  console.case_started("all_reduce/ranks:2/bytes:8");
  EXPECT_EQ(taken(), "\r[....................]   0%  0/4  all_reduce/ranks:2/bytes:8\x1b[K");
  now_ += 10;
  console.case_done(record("all_reduce", 8, Ruling::pass));
  // One case took 11 s, of which the case itself took 10 s. The estimate is (11 + 10) / 2 for each
  // of three more.
  EXPECT_EQ(taken(),
            "\r[#####...............]  25%  1/4  all_reduce/ranks:2/bytes:8  32 s left\x1b[K");
  console.case_started("all_reduce/ranks:2/bytes:16");
  EXPECT_EQ(taken(), "");  // too soon after the last update
  now_ += 1;
  console.case_done(record("all_reduce", 16, Ruling::fail, "wrong"));
  EXPECT_EQ(taken(),
            "\r\x1b[KFAIL    all_reduce/ranks:2/bytes:16  105 us  (wrong)\n"
            "\r[##########..........]  50%  2/4  all_reduce/ranks:2/bytes:16  15 s left\x1b[K");
}

TEST_F(ConsoleTest, TheLineNeverReachesTheLastColumn) {
  const std::string name(300, 'x');
  for (int width = 1; width <= 200; ++width) {
    Console console(out_, terminal(width), {}, clock());
    console.start(1000);
    console.case_started(name);
    now_ += 3;
    console.case_done(record("all_reduce", 8, Ruling::pass));
    std::string drawn = taken();
    for (std::size_t at; (at = drawn.find("\x1b[K")) != std::string::npos; drawn.erase(0, at + 3))
      EXPECT_LE(at - 1, static_cast<std::size_t>(width - 1)) << width;
  }
}

TEST_F(ConsoleTest, FinishReportsTheVerdictOfARejectedRun) {
  std::vector<Record> records{record("all_reduce", 8, Ruling::pass),
                              record("all_reduce", 16, Ruling::fail, "numerics: rank 1 is wrong"),
                              record("all_reduce", 32, Ruling::pass),
                              record("gemm", 64, Ruling::pass),
                              record("ring", 8, Ruling::skipped, "needs 4 GPUs, found 0"),
                              record("all_reduce", 64, Ruling::skipped, "needs 4 GPUs, found 0"),
                              record("ring", 16, Ruling::skipped, "needs NCCL")};
  records[0].counters = {
      {"busbw_GBps", 1.5}, {"limit_fraction", 0.5}, {"speedup_over_library", 2}, {"bytes", 1e6}};
  records[2].counters = {{"busbw_GBps", 4.5},
                         {"wire_GBps", 3},
                         {"limit_fraction", 0.7},
                         {"speedup_over_library", 1.5},
                         {"bytes", 1e6}};
  records[1].counters = {{"busbw_GBps", 99},
                         {"limit_fraction", 1}};  // failed, so its speed does not count
  records[3].counters = {{"flops", 8.4e6}};
  records[1].oracles = {{Oracle::numerics, Ruling::fail, 1, 0.1, "rank 1 is wrong"},
                        {Oracle::volume, Ruling::fail, 8, 4, "world: sent 8 bytes of 4"},
                        {Oracle::memory, Ruling::pass, 8, 8, "fine"}};
  Console console(out_, {}, {}, clock());
  console.finish({"quick", "", "out/run", "complete", "", {}}, records);
  EXPECT_EQ(taken(), R"(
unit        cases  passed  failed  skipped          best       wire  of limit  of library
all_reduce      4       2       1        1     4.50 GB/s  3.00 GB/s      70 %       1.50x
gemm            1       1       -        -  80.0 GFLOP/s
ring            2       -       -        2

Failed:
  all_reduce/ranks:2/bytes:16
    numerics: rank 1 is wrong
    volume: world: sent 8 bytes of 4

Skipped:
      2  needs 4 GPUs, found 0  (ring 1, all_reduce 1)
      1  needs NCCL  (ring 1)

nearest to its limit:     70 %  all_reduce/ranks:2/bytes:32
farthest from its limit:  50 %  all_reduce/ranks:2/bytes:8

REJECTED: 3 passed, 1 failed, 3 skipped
)");
}

// Returns a case of a unit with three axes.
Record with_axes(const std::string& algorithm, int bytes, double seconds) {
  Record one = record("all_reduce", bytes, Ruling::pass);
  one.axes = {{"algorithm", algorithm}, {"ranks", "2"}, {"bytes", std::to_string(bytes)}};
  one.name = "all_reduce/algorithm:" + algorithm + "/ranks:2/bytes:" + std::to_string(bytes);
  one.seconds = seconds;
  one.counters = {{"busbw_GBps", 1.5}, {"limit_fraction", 0.5}, {"case_s", seconds * 1e4}};
  return one;
}

const RunContext complete{"", "", "", "complete", "", {}};

TEST_F(ConsoleTest, ATableOfTrainingStepsShowsBothUtilizations) {
  std::vector<Record> records{with_axes("ring", 8, 1e-4), with_axes("ring", 64, 2e-4)};
  for (Record& one : records) one.counters = {{"mfu", 0.412}, {"mfu_of_gemm", 0.521}};
  EXPECT_EQ(summary_text(complete, records, terminal(100)), R"(
all_reduce  (algorithm ring, ranks 2)
verdict  bytes    time   MFU  of GEMM
pass         8  100 us  41 %     52 %
pass        64  200 us  41 %     52 %

ACCEPTED: 2 passed, 0 failed, 0 skipped
)");
}

TEST_F(ConsoleTest, FewCasesOnATerminalGetATableOfTheAxesThatVary) {
  const std::vector<Record> records{with_axes("ring", 8, 1e-4), with_axes("ring", 64, 2e-4)};
  EXPECT_EQ(summary_text(complete, records, terminal(100)), R"(
all_reduce  (algorithm ring, ranks 2)
verdict  bytes    time       rate  of limit
pass         8  100 us  1.50 GB/s      50 %
pass        64  200 us  1.50 GB/s      50 %

ACCEPTED: 2 passed, 0 failed, 0 skipped
)");
  EXPECT_EQ(summary_text(complete, records, {}).find("verdict"), std::string::npos)
      << "elsewhere each case had its line";
}

TEST_F(ConsoleTest, CasesBelowTheirExpectationAreNamedAndRejectTheRun) {
  std::vector<Record> records{with_axes("ring", 8, 1e-4), with_axes("ring", 64, 2e-4)};
  for (Record& one : records)
    one.counters = {{"expected_s", 1.2e-4},
                    {"expected_fraction", 1.2e-4 / one.seconds},
                    {"expected_floor", 0.8}};
  EXPECT_EQ(summary_text(complete, records, terminal(100)), R"(
all_reduce  (algorithm ring, ranks 2)
verdict  bytes    time  of expectation
pass         8  100 us           120 %
pass        64  200 us            60 %

Below the expected speed:
  all_reduce/algorithm:ring/ranks:2/bytes:64
    60 % of the expected speed (floor 80 %): 120 us expected, 200 us measured

REJECTED: 2 passed, 0 failed, 0 skipped; 1 case below the expected speed
)");
  // The lower end of the interval is fast enough, or there is no floor.
  records[1].counters["ci_low_s"] = 1.49e-4;
  EXPECT_EQ(summarize(complete, records).verdict, "ACCEPTED");
  records[1].counters["ci_low_s"] = 1.51e-4;
  EXPECT_EQ(summarize(complete, records).verdict, "REJECTED");
  records[1].counters.erase("expected_floor");
  EXPECT_EQ(summarize(complete, records).verdict, "ACCEPTED");
}

TEST_F(ConsoleTest, CasesAboveTheirLimitAreCountedSeparately) {
  std::vector<Record> records;
  for (const double fraction : {0.2, 0.7, 24.5}) {
    records.push_back(
        record("all_reduce", static_cast<int>(8 * (1 + records.size())), Ruling::pass));
    records.back().counters = {{"limit_fraction", fraction}, {"bytes", 1e6}};
  }
  const std::string text =
      summary_text({"quick", "", "out/run", "complete", "", {}}, records, {}, {});
  EXPECT_NE(text.find("nearest to its limit:     70 %  all_reduce/ranks:2/bytes:16\n"
                      "farthest from its limit:  20 %  all_reduce/ranks:2/bytes:8\n"
                      "above 100 % of the limit: 1 case"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("measured again"), std::string::npos) << text;
  for (Record& one : records) one.counters["limit_measured_again"] = 1;
  const std::string measured =
      summary_text({"quick", "", "out/run", "complete", "", {}}, records, {}, {});
  EXPECT_NE(measured.find("above 100 % of the limit: 1 case, so the measured rates are too low\n"
                          "limits measured again after 3 cases exceeded them\n"),
            std::string::npos)
      << measured;
}

TEST_F(ConsoleTest, ATrainingStepShowsBothUtilizations) {
  Record step = record("gpt_step", 8, Ruling::pass);
  step.counters = {{"mfu", 0.412}, {"mfu_of_gemm", 0.521}, {"peak_TFLOPs", 989}};
  Console console(out_, {}, {}, clock());
  console.case_done(step);
  const std::string text = taken();
  EXPECT_NE(text.find("  MFU 41 % of the peak, 52 % of the best GEMM\n"), std::string::npos)
      << text;
}

TEST_F(ConsoleTest, ATerminalShortensLongNamesOfTheLimits) {
  std::vector<Record> records;
  for (const double fraction : {0.2, 0.7}) {
    records.push_back(record("all_reduce", static_cast<int>(100 * fraction), Ruling::pass));
    records.back().name += std::string(200, 'x');
    records.back().counters = {{"limit_fraction", fraction}, {"bytes", 1e6}};
  }
  const auto longest = [&](const Terminal& out) {
    std::istringstream text(
        summary_text({"quick", "", "out/run", "complete", "", {}}, records, out, {}));
    std::size_t most = 0;
    for (std::string line; std::getline(text, line);) most = std::max(most, line.size());
    return most;
  };
  EXPECT_LE(longest(terminal(120)), 100U);
  EXPECT_GT(longest({}), 200U);
}

TEST_F(ConsoleTest, AStarMarksLibrariesThatShareCores) {
  Record alone = record("all_reduce", 8, Ruling::pass), shares = record("barrier", 8, Ruling::pass);
  for (Record* one : {&alone, &shares})
    one->counters = {{"busbw_GBps", 1.5}, {"speedup_over_library", 3370.4}, {"bytes", 8}};
  const auto text = [&](const std::vector<Record>& records) {
    return summary_text({"quick", "", "out/run", "complete", "", {}}, records, {}, {});
  };
  EXPECT_EQ(text({alone, shares}).find("3370x*"), std::string::npos);
  shares.shares_cores = true;
  const std::string marked = text({alone, shares});
  EXPECT_NE(marked.find("3370x\n"), std::string::npos) << marked;
  EXPECT_NE(marked.find("3370x*\n* more ranks than cores"), std::string::npos) << marked;
}

TEST_F(ConsoleTest, ANarrowTerminalLosesColumnsNotLines) {
  const std::vector<Record> records{with_axes("ring", 8, 1e-4)};
  EXPECT_EQ(summary_text(complete, records, terminal(24)),
            "\nall_reduce  (algorithm ring, ranks 2, bytes 8)\nverdict    time\npass     100 us\n\n"
            "ACCEPTED: 1 passed, 0 failed, 0 skipped\n");
}

TEST_F(ConsoleTest, ManyCasesFitAScreenAndNoLineIsLongerThan100Columns) {
  std::vector<Record> records;
  for (int unit = 0; unit < 42; ++unit)
    for (int i = 0; i < 8; ++i) {
      records.push_back(with_axes("ring", 8 << i, 1e-4));
      records.back().unit = "unit_" + std::to_string(unit) + "_with_a_long_name";
    }
  const std::string text = summary_text(complete, records, terminal(100), {.durations = 20});
  EXPECT_LE(std::ranges::count(text, '\n'), 100);
  for (const auto line : std::views::split(text, '\n')) EXPECT_LE(std::ssize(line), 100);
}

TEST_F(ConsoleTest, DurationsListsTheLongestCases) {
  std::vector<Record> records{with_axes("ring", 8, 1e-4), with_axes("tree", 8, 3e-4),
                              with_axes("ring", 64, 2e-4)};
  records[0].counters["sampling_s"] = 0.95;
  records[1].counters["sampling_s"] = 2.75;
  const std::string text = summary_text(complete, records, {}, {.durations = 2});
  EXPECT_NE(text.find("\nLongest of 3 cases, and without their samples (medians 2.00 s, 250 ms):\n"
                      "   3.00 s   250 ms  all_reduce/algorithm:tree/ranks:2/bytes:8\n"
                      "   2.00 s   2.00 s  all_reduce/algorithm:ring/ranks:2/bytes:64\n\n"),
            std::string::npos)
      << text;
}

TEST_F(ConsoleTest, VerboseShowsEveryCaseOnATerminal) {
  Console console(out_, terminal(80), {.verbose = true}, clock());
  console.start(100);
  taken();
  console.case_done(with_axes("ring", 8, 1e-4));
  EXPECT_NE(taken().find("pass    all_reduce/algorithm:ring/ranks:2/bytes:8  100 us"),
            std::string::npos);
}

TEST_F(ConsoleTest, TheHeadIsOnlyForTerminals) {
  Console(out_, {}, {}, clock()).head({{"machine", "node1"}});
  EXPECT_EQ(taken(), "");
  Console(out_, terminal(80), {}, clock()).head({{"machine", "node1"}, {"GPUs", "8"}});
  EXPECT_EQ(taken(), "machine   node1\nGPUs      8\n");
}

TEST_F(ConsoleTest, ColorsOnlyOnRequest) {
  const std::vector<Record> records{record("a", 8, Ruling::pass)};
  const RunContext context{"", "", "", "complete", "", {}};
  EXPECT_EQ(summary_text(context, records, terminal(80)).find('\x1b'), std::string::npos);
  Terminal colored = terminal(80);
  colored.color = true;
  EXPECT_NE(summary_text(context, records, colored).find("\x1b[32mACCEPTED"), std::string::npos);
  EXPECT_FALSE(terminal_of(out_).interactive);  // memory is not a terminal
  EXPECT_FALSE(terminal_of(out_).color);
  EXPECT_TRUE(terminal_of(out_, Color::always).color);
  EXPECT_EQ(parse_color("never"), Color::never);
  EXPECT_THROW(parse_color("sometimes"), machine::UsageError);
}

TEST(Verdict, OnlyAFinishedRunWithAPassedCaseIsAccepted) {
  const auto verdict = [](const std::string& status, const std::vector<Record>& records) {
    return summarize({"", "", "", status, "", {}}, records).line();
  };
  const Record passed = record("a", 1, Ruling::pass), failed = record("a", 2, Ruling::fail),
               skipped = record("a", 3, Ruling::skipped);
  EXPECT_EQ(verdict("complete", {passed, skipped}), "ACCEPTED: 1 passed, 0 failed, 1 skipped");
  EXPECT_EQ(verdict("complete", {passed, failed}), "REJECTED: 1 passed, 1 failed, 0 skipped");
  EXPECT_EQ(verdict("complete", {skipped}),
            "REJECTED: nothing passed: 0 passed, 0 failed, 1 skipped");
  EXPECT_EQ(verdict("complete", {}), "REJECTED: nothing passed: 0 passed, 0 failed, 0 skipped");
  EXPECT_EQ(verdict("interrupted", {passed}),
            "REJECTED: interrupted: 1 passed, 0 failed, 0 skipped");
  EXPECT_EQ(verdict("aborted", {passed, failed}),
            "REJECTED: aborted: 1 passed, 1 failed, 0 skipped");
  EXPECT_EQ(verdict("running", {passed}), "REJECTED: not finished: 1 passed, 0 failed, 0 skipped");
}

TEST(Verdict, NamesGpusThatWereNotTested) {
  const Record passed = record("a", 1, Ruling::pass);
  RunContext context;
  context.status = "complete";
  const auto line = [&](Gpus gpus) {
    context.gpus = gpus;
    return summarize(context, {passed}).line();
  };
  EXPECT_EQ(line({8, 8, false}), "ACCEPTED: 1 passed, 0 failed, 0 skipped");
  EXPECT_EQ(line({8, 2, false}),
            "ACCEPTED: 1 passed, 0 failed, 0 skipped; NOT TESTED: 6 of 8 GPUs");
  EXPECT_EQ(line({1, 0, false}), "ACCEPTED: 1 passed, 0 failed, 0 skipped; NOT TESTED: 1 of 1 GPU");
}

TEST(Verdict, VirtualGpusAcceptNoHardware) {
  RunContext context;
  context.status = "complete";
  context.gpus = {2, 2, true};
  const Summary summary = summarize(context, {record("a", 1, Ruling::pass)});
  EXPECT_EQ(summary.line(),
            "PASSED ON VIRTUAL GPUS: 1 passed, 0 failed, 0 skipped; no hardware was tested");
  EXPECT_EQ(summary.ruling, Ruling::skipped);
  EXPECT_EQ(summarize(context, {record("a", 1, Ruling::fail)}).verdict, "REJECTED");
}

TEST(Verdict, ARunThatSkippedAllCommunicationIsNotAccepted) {
  RunContext context;
  context.status = "complete";
  Record alone = record("gemm", 1, Ruling::pass), sends = record("all_reduce", 2, Ruling::skipped);
  alone.axes = {{"ranks", "1"}};
  sends.axes = {{"transport", "nccl"}, {"ranks", "2"}};
  EXPECT_EQ(summarize(context, {alone, sends}).line(),
            "REJECTED: all communication was skipped: 1 passed, 0 failed, 1 skipped");
  EXPECT_EQ(summarize(context, {alone}).verdict, "ACCEPTED");
  sends.verdict = Ruling::pass;
  EXPECT_EQ(summarize(context, {alone, sends}).verdict, "ACCEPTED");
}

TEST(Texts, SecondsAndDurations) {
  EXPECT_EQ(seconds_text(0), "0 s");
  EXPECT_EQ(seconds_text(3.3e-7), "330 ns");
  EXPECT_EQ(seconds_text(9.997e-4), "1.00 ms");
  EXPECT_EQ(seconds_text(0.01234), "12.3 ms");
  EXPECT_EQ(seconds_text(1234.5), "1234 s");
  EXPECT_EQ(duration_text(59.4), "59 s");
  EXPECT_EQ(duration_text(125), "2 min 5 s");
  EXPECT_EQ(duration_text(4800), "1 h 20 min");
}

}  // namespace
}  // namespace harness
