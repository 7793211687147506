#include "harness/run/run.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>

#include "harness/json/json.h"
#include "harness/record/run_json.h"
#include "harness/testing/pretended_gpu.h"
#include "machine/base/error.h"
#include "machine/device/kernels.h"
#include "machine/link/connect.h"

namespace harness {
namespace {

using machine::Dtype;
using machine::Operation;
using machine::Transport;

// The fault is an axis, so a test selects it like a user.
struct Toy {
  static constexpr std::string_view name = "toy";
  static constexpr std::string_view about = "sends a number around a ring";
  static constexpr Oracle oracles[] = {Oracle::numerics, Oracle::volume, Oracle::memory,
                                       Oracle::schedule, Oracle::determinism};
  static constexpr Counter counters[] = {
      {"runs", "", Better::neither, Nature::measured, "calls of run"},
      {"runs_per_second", "1/s", Better::higher, Nature::speed, "calls of run over the time"}};
  struct Case {
    std::string fault;
    int ranks = 1;
    Bytes bytes;
  };
  static Sweep<Case> sweep() {
    return Sweep<Case>()
        .axis("fault", &Case::fault, "none")
        .axis("ranks", &Case::ranks, 1)
        .axis("bytes", &Case::bytes, Bytes{64})
        .slice({Profile::quick}, "ranks", {vary(&Case::ranks, {1, 2, 3})});
  }
  static std::string why_not(const Case& the_case, const Context& context) {
    if (the_case.fault == "skip") return "needs what is not here";
    return the_case.fault == "skip_last" && context.group.index == the_case.ranks - 1
               ? "misses something"
               : "";
  }

  Toy(const Case& the_case, Context& context) : case_(the_case), context_(context) {
    last_ = context.group.index == the_case.ranks - 1;
    if (last_ && is("construct")) throw std::runtime_error("cannot set up");
    link_ = machine::connect(context.world, context.group, Transport::shared_memory);
    data_ = context.device.allocate(static_cast<std::size_t>(case_.bytes.value),
                                    machine::Category::buffers);
    std::fill_n(static_cast<char*>(data_.data()), case_.bytes.value, static_cast<char>(7));
  }
  bool is(std::string_view fault) const { return case_.fault == fault; }
  void prepare() {
    if (last_ && is("prepare")) throw std::runtime_error("cannot prepare");
  }
  void run() {
    ++runs_;
    if (last_ && is("run")) throw std::runtime_error("cannot run");
    if (last_ && is("signal") && runs_ == 1) std::raise(SIGTERM);
    const int size = link_->size(), next = (link_->rank() + 1) % size;
    if (size == 1) return;
    link_->reset_traffic();
    link_->count_as({Operation::send_receive, Dtype::float32});
    const auto bytes = static_cast<std::size_t>(case_.bytes.value);
    if (last_ && is("hang")) link_->receive(next, data_.data(), bytes);  // never sent
    const auto number = link_->send(next, data_.data(), bytes);
    received_.resize(bytes);
    link_->receive((link_->rank() + size - 1) % size, received_.data(), bytes);
    link_->wait_sent(next, number);
  }
  void yardstick() { run(); }
  void judge(Judge& judge) {
    if (last_ && is("judge")) throw std::runtime_error("cannot judge");
    const double expected[] = {7}, actual[] = {last_ && is("numerics") ? 8.0 : 7.0};
    judge.exact("payload", actual, expected);
    const auto bytes = static_cast<std::uint64_t>(case_.bytes.value);
    machine::Traffic traffic{bytes, 1, bytes, 1};
    if (link_->size() == 1) traffic = {};
    if (last_ && is("volume")) ++traffic.messages_sent;
    judge.volume(*link_, {{{Operation::send_receive, Dtype::float32}, traffic}});
    judge.memory(machine::Category::buffers,
                 context_.device.ledger().peak(machine::Category::buffers),
                 bytes + (last_ && is("memory") ? 1 : 0));
    if (!is("no_schedule")) judge.schedule("order", "S R", last_ && is("schedule") ? "R S" : "S R");
    judge.same_bits("payload", last_ && is("determinism") ? 2 : 1);
  }
  Cost cost() const {
    return {.memory_bytes = 128, .algorithm_bytes = 64, .bus_factor = 1, .tokens = 3};
  }
  void describe(Description& description) {
    if (last_ && is("describe")) throw std::runtime_error("cannot describe");
    if (is("undeclared")) description.set("walks", runs_);
    if (is("overwrites")) description.set("wire_bytes_measured", 0);
    description.set("runs", runs_);
    if (description.seconds > 0) description.set("runs_per_second", runs_ / description.seconds);
  }

 private:
  Case case_;
  Context& context_;
  bool last_;
  int runs_ = 0;
  std::unique_ptr<machine::Link> link_;
  machine::Memory data_;
  std::vector<char> received_;
};
const bool registered = add<Toy>();

struct Listening : Progress, Sink {
  std::size_t announced = 0;
  std::vector<std::string> started;
  std::vector<Record> records, sunk;
  RunContext context;
  int finished = 0;
  void start(std::size_t cases) override { announced = cases; }
  void case_started(const std::string& name) override { started.push_back(name); }
  void case_done(const Record& record) override { records.push_back(record); }
  void finish(const RunContext& the_context, const std::vector<Record>&) override {
    context = the_context;
  }
  void add(const Record& record) override { sunk.push_back(record); }
  void finish(const RunContext&) override { ++finished; }
};

struct Outcome {
  std::vector<int> exit_codes;  // of the ranks that returned
  Listening heard;              // rank 0
  std::string error;            // exception of run_ranks
};

Outcome launch(int ranks, const AxisFlags& flags, std::vector<std::string> google_flags = {},
               double timeout_s = 20, bool rates = false,
               const std::function<void(machine::World&)>& before = {},
               const RunOptions& given = {}) {
  const auto cases = plan_cases({"toy"}, {Profile::quick, flags});
  Outcome outcome;
  std::mutex mutex;
  const auto body = [&](machine::World& world) {
    if (before) before(world);
    Listening mine;
    RunOptions options = given;
    options.max_seconds_per_case = 0.05;
    options.google_flags = google_flags;
    options.measure_rates = rates;
    Listening& heard = world.rank() == 0 ? outcome.heard : mine;
    options.sink = world.rank() == 0 ? &heard : nullptr;
    const int exit_code = run(world, cases, options, heard);
    EXPECT_TRUE(mine.started.empty());
    const std::lock_guard lock(mutex);
    outcome.exit_codes.push_back(exit_code);
  };
  try {
    machine::run_ranks(ranks, body, timeout_s);
  } catch (const std::exception& error) {
    outcome.error = error.what();
  }
  return outcome;
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(Run, PassesAndCounts) {
  const Outcome outcome = launch(3, {});
  EXPECT_EQ(outcome.exit_codes, (std::vector<int>{0, 0, 0})) << outcome.error;
  ASSERT_EQ(outcome.heard.records.size(), 3u);
  EXPECT_EQ(outcome.heard.announced, 3u);
  EXPECT_EQ(outcome.heard.sunk.size(), 3u);
  EXPECT_EQ(outcome.heard.finished, 1);
  EXPECT_EQ(outcome.heard.context.status, "complete");
  const Record& record = outcome.heard.records[2];
  EXPECT_EQ(record.name, "toy/ranks:3");
  EXPECT_EQ(record.verdict, Ruling::pass) << record.reason;
  EXPECT_EQ(record.oracles.size(), 5u);
  EXPECT_GT(record.seconds, 0);
  EXPECT_EQ(record.samples.ranks, 3);
  EXPECT_FALSE(record.stop.empty());
  const auto& counters = record.counters;
  EXPECT_EQ(counters.at("wire_bytes_measured"), 3 * 64);
  EXPECT_EQ(counters.at("messages_expected"), 3);
  EXPECT_EQ(counters.at("peak_bytes_measured"), 64);
  EXPECT_EQ(counters.at("max_error"), 0);
  EXPECT_EQ(counters.at("samples"), record.samples.iterations());
  EXPECT_GE(counters.at("batch"), 1);
  EXPECT_DOUBLE_EQ(counters.at("algbw_GBps"), 64 / record.seconds / 1e9);
  // 64 bytes of one rank, of 3 * 64 bytes in total.
  EXPECT_DOUBLE_EQ(counters.at("wire_GBps"), 64 / record.seconds / 1e9);
  EXPECT_DOUBLE_EQ(counters.at("tokens_per_second"), 3 / record.seconds);
  EXPECT_GT(counters.at("speedup_over_library"), 0);
  EXPECT_GT(counters.at("runs"), 0);
  EXPECT_GT(counters.at("runs_per_second"), 0);
  EXPECT_FALSE(counters.contains("limit_s"));
}

TEST(Run, FinishedCasesAreNotRunAgain) {
  RunOptions options;
  options.finished = launch(3, {{"ranks", "1,3"}, {"fault", "none,numerics"}}).heard.records;
  ASSERT_EQ(options.finished.size(), 4u);
  options.context.rates = {{"copy_GBps/ranks:9/bytes:8", 1.5}};
  const AxisFlags all{{"ranks", "1,2,3"}, {"fault", "none,numerics"}};
  const Outcome outcome = launch(3, all, {}, 20, false, {}, options);
  EXPECT_EQ(outcome.exit_codes, (std::vector<int>{1, 1, 1})) << outcome.error;  // includes old ones
  EXPECT_EQ(outcome.heard.announced, 2u);
  EXPECT_EQ(outcome.heard.started,
            (std::vector<std::string>{"toy/ranks:2", "toy/fault:numerics/ranks:2"}));
  EXPECT_EQ(outcome.heard.sunk.size(), 2u);
  EXPECT_EQ(outcome.heard.context.rates.size(), 1u);
  EXPECT_EQ(outcome.heard.context.not_run, 0);
}

TEST(Run, CasesBeyondTheTimeLimitAreCounted) {
  RunOptions options;
  options.max_seconds = 1e-9;
  const Outcome none = launch(2, {{"ranks", "1,2"}}, {}, 20, false, {}, options);
  EXPECT_EQ(none.exit_codes, (std::vector<int>{0, 0})) << none.error;
  EXPECT_TRUE(none.heard.records.empty());
  EXPECT_EQ(none.heard.context.not_run, 2);
  EXPECT_EQ(none.heard.context.status, "complete");
  options.max_seconds = 1000;
  const Outcome all =
      launch(2, {{"ranks", "1,2"}}, {"--benchmark_repetitions=2"}, 20, false, {}, options);
  EXPECT_EQ(all.heard.records.size(), 4u);
  EXPECT_EQ(all.heard.context.not_run, 0);
}

TEST(Run, RanksOnASharedGpuHaveTimesButNoSpeeds) {
  // Three ranks on two GPUs: ranks 1 and 2 share one.
  const auto choose = [](machine::World& world) {
    world.use_device(std::make_unique<PretendedGpu>(world.rank() == 0 ? 1 : 2));
    world.barrier(world.group());
    EXPECT_EQ(world.devices_of(world.group()), 2);
    EXPECT_EQ(world.sharers_of_device(world.group()), world.rank() == 0 ? 1 : 2);
    EXPECT_EQ(machine::why_not(world, world.group(), Transport::nccl),
              machine::cuda::built() ? "transport nccl requires 3 GPUs (got 2); cuda_ipc supports "
                                       "several ranks per GPU"
                                     : "transport nccl: this program was built without NCCL");
  };
  const Outcome outcome = launch(3, {{"ranks", "2,3"}}, {}, 20, false, choose);
  ASSERT_EQ(outcome.heard.records.size(), 2u) << outcome.error;
  const Record &alone = outcome.heard.records[0], &shared = outcome.heard.records[1];
  EXPECT_EQ(shared.verdict, Ruling::pass) << shared.reason;
  EXPECT_FALSE(alone.oversubscribed);
  EXPECT_TRUE(shared.oversubscribed);
  EXPECT_GT(shared.seconds, 0);
  for (const char* claim :
       {"algbw_GBps", "busbw_GBps", "tokens_per_second", "speedup_over_library"}) {
    EXPECT_EQ(alone.counters.contains(claim), !machine::cuda::is_virtual()) << claim;
    EXPECT_FALSE(shared.counters.contains(claim)) << claim;
  }
}

TEST(Run, ABrokenGpuEndsTheRunAtTheCaseThatBrokeIt) {
  for (const int broken : {0, 1}) {
    const auto choose = [&](machine::World& world) {
      world.use_device(std::make_unique<PretendedGpu>(1, world.rank() == broken));
    };
    const Outcome outcome =
        launch(2, {{"ranks", "2"}, {"fault", "none,numerics"}}, {}, 5, false, choose);
    EXPECT_TRUE(outcome.exit_codes.empty());
    ASSERT_EQ(outcome.heard.sunk.size(), 1u);
    EXPECT_EQ(outcome.heard.sunk[0].verdict, Ruling::fail);
    const RunContext& context = outcome.heard.context;
    EXPECT_EQ(context.status, "aborted");
    EXPECT_TRUE(has(context.status_reason,
                    "toy/ranks:2 broke pretended, so no later case ran: an illegal memory access"))
        << context.status_reason;
    ASSERT_TRUE(context.failure);
    EXPECT_EQ(machine::lost_rank(*context.failure), broken);
  }
}

TEST(Run, SkipsCasesThatCannotBeArmed) {
  const auto cases = plan_cases({"toy"}, {Profile::quick, {{"ranks", "1"}}});
  Listening heard;
  machine::run_ranks(1, [&](machine::World& world) {
    RunOptions options;
    options.timing = Timing::armed;
    options.measure_rates = false;
    options.sink = &heard;
    run(world, cases, options, heard);
  });
  EXPECT_EQ(heard.records.at(0).verdict, Ruling::skipped);
  EXPECT_EQ(heard.records.at(0).reason,
            "timing armed requires a run that only queues work on the device's stream");
}

// With the thread sanitizer, copies that no cache holds take minutes. rates_test is also excluded
// there.
#ifndef __SANITIZE_THREAD__
TEST(Run, ComparesTimesWithTheMachine) {
  const Outcome outcome = launch(2, {{"ranks", "2"}}, {}, 20, true);
  const Record& record = outcome.heard.records.at(0);
  EXPECT_GT(record.counters.at("limit_s"), 0);
  EXPECT_DOUBLE_EQ(record.counters.at("limit_fraction"),
                   record.counters.at("limit_s") / record.seconds);
  EXPECT_TRUE(outcome.heard.context.rates.contains("gemm_GFLOPs/ranks:2/dtype:float"));
}
#endif

TEST(Run, EachOracleCanFail) {
  for (const char* fault : {"numerics", "volume", "memory", "schedule", "determinism"}) {
    const Outcome outcome = launch(2, {{"ranks", "2"}, {"fault", fault}});
    EXPECT_EQ(outcome.exit_codes, (std::vector<int>{1, 1})) << fault;
    const Record& record = outcome.heard.records.at(0);
    EXPECT_EQ(record.verdict, Ruling::fail);
    EXPECT_TRUE(record.reason.starts_with(fault)) << record.reason;
    EXPECT_TRUE(has(record.reason, "rank 1")) << record.reason;
    EXPECT_GT(record.seconds, 0);  // the numbers are kept
  }
  const Outcome silent = launch(2, {{"ranks", "2"}, {"fault", "no_schedule"}});
  EXPECT_EQ(silent.heard.records.at(0).reason, "schedule: declared, but never ruled");
}

TEST(Run, SkipsWithAReason) {
  const Outcome outcome = launch(2, {{"ranks", "1,2,3"}, {"fault", "skip,skip_last"}});
  EXPECT_EQ(outcome.exit_codes, (std::vector<int>{0, 0}));
  ASSERT_EQ(outcome.heard.records.size(), 6u);
  for (const Record& record : outcome.heard.records) EXPECT_EQ(record.verdict, Ruling::skipped);
  EXPECT_EQ(outcome.heard.records[0].reason, "rank 0: needs what is not here");
  EXPECT_EQ(outcome.heard.records[2].reason, "requires 3 ranks (got 2)");
  EXPECT_EQ(outcome.heard.records[4].reason, "rank 1: misses something");
}

TEST(Run, AnExceptionOnOneRankFailsTheCaseAndTheRunContinues) {
  for (const char* fault : {"prepare", "judge", "describe"}) {
    const Outcome outcome = launch(3, {{"ranks", "2"}, {"fault", std::string(fault) + ",none"}});
    EXPECT_EQ(outcome.exit_codes, (std::vector<int>{1, 1, 1})) << fault << " " << outcome.error;
    ASSERT_EQ(outcome.heard.records.size(), 2u);
    EXPECT_EQ(outcome.heard.records[0].verdict, Ruling::fail);
    EXPECT_TRUE(has(outcome.heard.records[0].reason, std::string("cannot ") + fault))
        << outcome.heard.records[0].reason;
    EXPECT_TRUE(outcome.heard.records[0].reason.starts_with("rank 1: "))
        << outcome.heard.records[0].reason;
    EXPECT_EQ(outcome.heard.records[0].failure->rank, 1);
    EXPECT_EQ(outcome.heard.records[1].verdict, Ruling::pass) << outcome.heard.records[1].reason;
  }
}

TEST(Run, AnUndeclaredCounterFailsTheCase) {
  const Outcome outcome = launch(1, {{"ranks", "1"}, {"fault", "undeclared,overwrites"}});
  ASSERT_EQ(outcome.heard.records.size(), 2u) << outcome.error;
  for (const Record& record : outcome.heard.records) EXPECT_EQ(record.verdict, Ruling::fail);
  EXPECT_TRUE(has(outcome.heard.records[0].reason, "counter 'walks' is not declared"))
      << outcome.heard.records[0].reason;
  EXPECT_TRUE(has(outcome.heard.records[1].reason, "'wire_bytes_measured' is the harness's own"))
      << outcome.heard.records[1].reason;
}

// The other rank waits inside the unit for the rank that threw, and cannot recover.
TEST(Run, AnExceptionThatBlocksOtherRanksEndsTheRunAndIsNamed) {
  for (const char* fault : {"run", "construct", "hang"}) {
    const auto begin = std::chrono::steady_clock::now();
    const Outcome outcome =
        launch(3, {{"ranks", "2"}, {"fault", std::string(fault) + ",none"}}, {}, 0.5);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << fault;
    EXPECT_TRUE(outcome.exit_codes.empty()) << fault;
    EXPECT_FALSE(outcome.error.empty()) << fault;
    ASSERT_EQ(outcome.heard.sunk.size(), 1u) << fault;
    EXPECT_EQ(outcome.heard.sunk[0].verdict, Ruling::fail);
    EXPECT_EQ(outcome.heard.context.status, "aborted");
    EXPECT_EQ(outcome.heard.finished, 1);
    EXPECT_TRUE(has(outcome.heard.context.status_reason, "rank 1"))
        << outcome.heard.context.status_reason;
    const auto& failure = outcome.heard.context.failure;
    ASSERT_TRUE(failure) << fault;
    EXPECT_EQ(outcome.heard.sunk[0].failure, failure);
    EXPECT_EQ(machine::lost_rank(*failure), fault == std::string("hang") ? -1 : 1) << fault;
    if (fault != std::string("hang")) {
      EXPECT_TRUE(has(outcome.heard.context.status_reason, "cannot"))
          << outcome.heard.context.status_reason;
    }
  }
}

TEST(Run, ASignalEndsTheRunAfterTheCaseAndKeepsResults) {
  const Outcome outcome = launch(2, {{"ranks", "2"}, {"fault", "none,signal,numerics"}});
  EXPECT_EQ(outcome.exit_codes, (std::vector<int>{128 + SIGTERM, 128 + SIGTERM}));
  ASSERT_EQ(outcome.heard.sunk.size(), 2u);
  EXPECT_EQ(outcome.heard.sunk[1].verdict, Ruling::pass) << outcome.heard.sunk[1].reason;
  EXPECT_EQ(outcome.heard.context.status, "interrupted");
  EXPECT_EQ(outcome.heard.context.status_reason, "SIGTERM after 2 of 3 cases");
  EXPECT_EQ(outcome.heard.finished, 1);
  // The next run starts afresh.
  EXPECT_EQ(launch(2, {{"ranks", "2"}}).exit_codes, (std::vector<int>{0, 0}));
}

// A sink that cannot write ends the run on all ranks.
TEST(Run, AFullDiskEndsTheRun) {
  struct Full : Listening {
    void add(const Record&) override {
      throw machine::MachineError("run.json: no space left on device",
                                  machine::Failure::Kind::disk_full);
    }
  };
  const auto cases = plan_cases({"toy"}, {Profile::quick});
  Full full;
  Listening other;
  const auto body = [&](machine::World& world) {
    RunOptions options;
    options.max_seconds_per_case = 0.05;
    options.measure_rates = false;
    if (world.rank() == 0) options.sink = &full;
    try {
      const int code = run(world, cases, options, world.rank() == 0 ? full : other);
      EXPECT_EQ(world.rank(), 1);
      EXPECT_EQ(code, environment);
    } catch (const Unwritten& error) {
      EXPECT_EQ(world.rank(), 0);
      EXPECT_TRUE(has(error.what(), "no space left")) << error.what();
    }
    EXPECT_LT(world.board().failed_rank(), 0) << "no rank is lost by that";
  };
  machine::run_ranks(2, body, 5);
  EXPECT_EQ(full.started.size(), 1u);
  EXPECT_EQ(full.context.status, "aborted");
  EXPECT_EQ(full.context.failure->kind, machine::Failure::Kind::disk_full);
  EXPECT_EQ(machine::lost_rank(*full.context.failure), -1);
}

TEST(Run, GoogleFlagsSelectAndRepeat) {
  const Outcome filtered =
      launch(2, {}, {"--benchmark_filter=ranks:2/bytes:64$", "--benchmark_repetitions=3"});
  ASSERT_EQ(filtered.heard.records.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(filtered.heard.records[static_cast<std::size_t>(i)].repetition, i);
    EXPECT_EQ(filtered.heard.records[static_cast<std::size_t>(i)].name, "toy/ranks:2");
  }
  const Outcome negative = launch(2, {}, {"--benchmark_filter=-ranks:2"});
  EXPECT_EQ(negative.heard.started, (std::vector<std::string>{"toy/ranks:1", "toy/ranks:3"}));
}

TEST(Run, InvalidGoogleFlagsAreRejected) {
  const auto error = [](const std::string& flag) {
    const Outcome outcome = launch(2, {}, {flag});
    EXPECT_TRUE(outcome.exit_codes.empty());
    EXPECT_TRUE(outcome.heard.records.empty());
    return outcome.error;
  };
  EXPECT_EQ(error("--benchmark_fliter=x"),
            "unknown flag '--benchmark_fliter'; did you mean '--benchmark_filter'?");
  EXPECT_TRUE(has(error("--benchmark_filter=nothing"),
                  "--benchmark_filter 'nothing' matches none of 3 names"));
  EXPECT_TRUE(has(error("--benchmark_filter=("), "not a regular expression"));
  EXPECT_TRUE(has(error("--benchmark_min_time=1"), "not supported"));
  EXPECT_TRUE(has(error("--benchmark_format=jsno"), "did you mean 'json'?"));
  EXPECT_TRUE(has(error("--benchmark_repetitions=0"), "at least 1"));
  EXPECT_TRUE(
      has(error("--benchmark_out=/nowhere/at/all.json"), "cannot write '/nowhere/at/all.json'"));
}

TEST(Run, ListsWithoutRunning) {
  testing::internal::CaptureStdout();
  const Outcome outcome =
      launch(2, {}, {"--benchmark_list_tests", "--benchmark_filter=ranks:[12]"});
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "toy/ranks:1\ntoy/ranks:2\n");
  EXPECT_EQ(outcome.exit_codes, (std::vector<int>{0, 0}));
  EXPECT_TRUE(outcome.heard.records.empty());
}

TEST(Run, GoogleBenchmarkReportsTheSelectedCase) {
  testing::internal::CaptureStdout();
  launch(2, {}, {"--benchmark_filter=ranks:2", "--benchmark_format=json"});
  const auto printed = Json::parse(testing::internal::GetCapturedStdout());
  EXPECT_EQ(printed["benchmarks"][0]["name"], "toy/ranks:2");
}

TEST(Run, WritesGoogleBenchmarkFilesAndOutput) {
  const std::string path = testing::TempDir() + "run_test_out.json";
  testing::internal::CaptureStdout();
  const Outcome outcome =
      launch(2, {{"fault", "none,numerics"}, {"ranks", "2"}},
             {"--benchmark_out=" + path, "--benchmark_format=json", "--benchmark_time_unit=us"});
  const auto printed = Json::parse(testing::internal::GetCapturedStdout());
  const auto written = Json::parse(file_text(path));
  std::remove(path.c_str());
  EXPECT_EQ(printed["benchmarks"].size(), 2u);
  const auto& passed = written["benchmarks"][0];
  EXPECT_EQ(passed["name"], "toy/ranks:2");
  EXPECT_EQ(passed["time_unit"], "us");
  EXPECT_NEAR(passed["real_time"].get<double>(), 1e6 * outcome.heard.records.at(0).seconds,
              1e-6 * passed["real_time"].get<double>());
  EXPECT_EQ(passed["wire_bytes_measured"], 128);
  const auto& failed = written["benchmarks"][1];
  EXPECT_EQ(failed["error_occurred"], true);
  EXPECT_TRUE(has(failed["error_message"].text(), "fail: numerics: rank 1"));
}

}  // namespace
}  // namespace harness
