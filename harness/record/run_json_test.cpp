#include "harness/record/run_json.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>

#include "harness/json/json.h"
#include "harness/testing/example_records.h"
#include "harness/testing/test_folder.h"
#include "harness/unit/sweep.h"
#include "machine/base/error.h"

namespace harness {
namespace {

namespace fs = std::filesystem;

class RunJson : public testing::Test {
 protected:
  std::string text(const std::string& name = "run.json") const {
    return read_bytes(directory_ + "/" + name);
  }
  Json json() const { return Json::parse(text()); }
  void put(const std::string& contents) const {
    std::ofstream(directory_ + "/run.json") << contents;
  }

  TestFolder folder_;
  const std::string directory_ = folder_.path("deep/run");
  RunContext context_{"quick",
                      "shardmark run --ranks 3",
                      "",
                      "running",
                      "",
                      {{"copy_GBps/ranks:2/bytes:1024", 12.5}},
                      R"({"keys":{"a":{"value":1,"origin":"x"}},"warnings":[]})"};
};

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

TEST_F(RunJson, ReadsBackWrittenRecords) {
  std::vector<Record> records;
  RunWriter writer(context_, directory_);
  for (int i = 0; i < 7; ++i) {
    records.push_back(example_record(i, i == 3   ? Ruling::fail
                                        : i == 5 ? Ruling::skipped
                                                 : Ruling::pass));
    writer.add(records.back());
  }
  context_.status = "complete";
  writer.finish(context_);

  const RunFile run = read_run(directory_);
  EXPECT_EQ(run.context.profile, "quick");
  EXPECT_EQ(run.context.command, context_.command);
  EXPECT_EQ(run.context.configuration, context_.configuration);
  EXPECT_EQ(run.context.status, "complete");
  EXPECT_EQ(run.context.rates, context_.rates);
  ASSERT_EQ(run.records.size(), records.size());
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Record &wrote = records[i], &read = run.records[i];
    EXPECT_EQ(read.unit, wrote.unit);
    EXPECT_EQ(read.name, wrote.name);
    EXPECT_EQ(read.axes, wrote.axes);
    EXPECT_EQ(read.verdict, wrote.verdict);
    EXPECT_EQ(read.reason, wrote.reason);
    // Two roundings, to nanoseconds and back.
    EXPECT_NEAR(read.seconds, wrote.seconds, wrote.seconds * 2 * 0x1p-53);
    EXPECT_EQ(read.quantiles.p95, wrote.quantiles.p95);
    EXPECT_EQ(read.note, wrote.note);
    EXPECT_EQ(read.fingerprint, wrote.fingerprint);
    EXPECT_EQ(read.timing, wrote.timing);
    EXPECT_EQ(read.stop, wrote.stop);
    EXPECT_EQ(read.oversubscribed, wrote.oversubscribed);
    EXPECT_EQ(read.samples.ranks, wrote.samples.ranks);
    EXPECT_EQ(read.samples.seconds, wrote.samples.seconds);
    EXPECT_EQ(read.counters, wrote.counters);
    EXPECT_EQ(read.losses, wrote.losses);
    EXPECT_EQ(read.link_matrix.hosts, wrote.link_matrix.hosts);
    EXPECT_EQ(read.link_matrix.bandwidth_GBps, wrote.link_matrix.bandwidth_GBps);
    EXPECT_EQ(read.link_matrix.latency_us, wrote.link_matrix.latency_us);
    EXPECT_EQ(read.link_matrix.crowded_hosts, wrote.link_matrix.crowded_hosts);
    ASSERT_EQ(read.link_matrix.slow_pairs.size(), wrote.link_matrix.slow_pairs.size());
    for (std::size_t k = 0; k < wrote.link_matrix.slow_pairs.size(); ++k) {
      const auto &wrote_pair = wrote.link_matrix.slow_pairs[k],
                 &read_pair = read.link_matrix.slow_pairs[k];
      EXPECT_EQ(std::pair(read_pair.from, read_pair.to), std::pair(wrote_pair.from, wrote_pair.to));
      EXPECT_EQ(read_pair.metric, wrote_pair.metric);
      EXPECT_EQ(std::tuple(read_pair.value, read_pair.typical, read_pair.z),
                std::tuple(wrote_pair.value, wrote_pair.typical, wrote_pair.z));
    }
    EXPECT_EQ(read.memory_maps, wrote.memory_maps);
    EXPECT_EQ(read.breakdown, wrote.breakdown);
    EXPECT_EQ(read.step_breakdown, wrote.step_breakdown);
    EXPECT_EQ(read.traits, wrote.traits);
    ASSERT_EQ(read.oracles.size(), wrote.oracles.size());
    for (std::size_t k = 0; k < wrote.oracles.size(); ++k) {
      EXPECT_EQ(read.oracles[k].oracle, wrote.oracles[k].oracle);
      EXPECT_EQ(read.oracles[k].ruling, wrote.oracles[k].ruling);
      EXPECT_EQ(read.oracles[k].measured, wrote.oracles[k].measured);
      EXPECT_EQ(read.oracles[k].text, wrote.oracles[k].text);
      EXPECT_EQ(read.oracles[k].reference, wrote.oracles[k].reference);
    }
    ASSERT_EQ(read.memory.size(), wrote.memory.size());
    for (std::size_t k = 0; k < wrote.memory.size(); ++k)
      EXPECT_EQ(read.memory[k].measured, wrote.memory[k].measured);
    ASSERT_EQ(read.timeline.size(), wrote.timeline.size());
    for (std::size_t k = 0; k < wrote.timeline.size(); ++k)
      EXPECT_EQ(read.timeline[k].end_s, wrote.timeline[k].end_s);
  }
}

TEST_F(RunJson, EveryFinishedCaseIsReadableAtAnyMoment) {
  RunWriter writer(context_, directory_);
  EXPECT_EQ(read_run(directory_).records.size(), 0u);
  for (int i = 0; i < 5; ++i) {
    writer.add(example_record(i));
    const RunFile run = read_run(directory_);
    ASSERT_EQ(run.records.size(), static_cast<std::size_t>(i) + 1);
    EXPECT_EQ(run.records.back().samples.seconds, example_record(i).samples.seconds);
    EXPECT_EQ(run.context.status, "running");
  }
  for (const auto& file : fs::directory_iterator(directory_))
    EXPECT_NE(file.path().extension(), ".tmp");
}

enum class Ended { killed, by_itself, untraced };

// Runs `work` in a child process that is killed right before its system call number n.
Ended killed_before_call(int n, const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(1);
    ::raise(SIGSTOP);
    work();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFSTOPPED(status)) return Ended::untraced;
  for (int stops = 0; stops < 2 * n + 1; ++stops) {  // one stop at each end of a call
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    ::waitpid(child, &status, 0);
    if (!WIFSTOPPED(status)) return Ended::by_itself;
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  return Ended::killed;
}

// Only system calls change the disk, so these are all possible moments.
TEST_F(RunJson, FinishedCasesSurviveAKillAtAnySystemCall) {
  {
    RunWriter older(context_, directory_);
    for (int i : {5, 6, 7}) older.add(example_record(i));
  }
  std::ofstream(directory_ + "/report.html") << "of the older run";
  const fs::path kept = folder_.path("kept");
  fs::copy(directory_, kept, fs::copy_options::recursive);
  RunContext context = context_;
  context.command = "the new run";
  // The number of cases that the killed process had finished writing.
  auto* finished = static_cast<std::size_t*>(::mmap(
      nullptr, sizeof(std::size_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(finished, MAP_FAILED);
  const auto work = [&] {
    RunWriter writer(context, directory_);
    for (int i : {0, 1, 2}) {
      writer.add(example_record(i));
      *finished = static_cast<std::size_t>(i) + 1;
    }
    context.status = "complete";
    writer.finish(context);
  };
  Ended ended = Ended::killed;
  std::size_t most = 0;
  int calls = 0, without_run = 0, complete = 0;
  for (; ended == Ended::killed; ++calls) {
    fs::remove_all(directory_);
    fs::copy(kept, directory_, fs::copy_options::recursive);
    *finished = 0;
    ended = killed_before_call(calls, work);
    if (ended == Ended::untraced) GTEST_SKIP() << "this machine does not allow tracing";
    if (fs::exists(directory_ + "/run.json")) {
      const RunFile run = read_run(directory_);
      const bool is_new = run.context.command == context.command;
      const int first = is_new ? 0 : 5;
      EXPECT_GE(run.records.size(), *finished) << "what was finished is gone, call " << calls;
      most = std::max(most, *finished);
      if (is_new) {
        EXPECT_FALSE(fs::exists(directory_ + "/report.html")) << "of another run, call " << calls;
      } else {
        EXPECT_EQ(*finished, 0U);
        EXPECT_EQ(run.records.size(), 3U);
      }
      for (std::size_t i = 0; i < run.records.size(); ++i) {
        const Record expected = example_record(first + static_cast<int>(i));
        EXPECT_EQ(run.records[i].name, expected.name) << "call " << calls;
        EXPECT_EQ(run.records[i].samples.seconds, expected.samples.seconds) << "call " << calls;
      }
      complete += run.context.status == "complete";
      EXPECT_TRUE(run.context.status != "complete" || run.records.size() == 3U);
    } else {
      EXPECT_EQ(*finished, 0U);
      ++without_run;
    }
    { RunWriter(context_, directory_).add(example_record(4)); }  // the directory can be reused
    EXPECT_EQ(read_run(directory_).records.size(), 1U);
    EXPECT_FALSE(fs::exists(directory_ + "/report.html")) << "call " << calls;
    for (const auto& file : fs::directory_iterator(directory_))
      EXPECT_NE(file.path().extension(), ".tmp") << "call " << calls;
  }
  EXPECT_EQ(ended, Ended::by_itself);
  EXPECT_EQ(most, 3U);
  EXPECT_GE(complete, 1);
  ::munmap(finished, sizeof *finished);
  std::printf("killed before each of %d calls; %d times no run was there\n", calls, without_run);
}

// The keys and their order match version 1.7.1 of the library.
TEST_F(RunJson, HasGoogleBenchmarksKeys) {
  RunWriter writer(context_, directory_);
  writer.add(example_record(0));
  writer.add(example_record(1, Ruling::fail));
  const auto json = this->json();
  std::vector<std::string> keys;
  for (const auto& [key, value] : json["context"].items()) keys.push_back(key);
  EXPECT_EQ(
      std::vector(keys.begin(), keys.begin() + 5),
      (std::vector<std::string>{"date", "host_name", "executable", "num_cpus", "mhz_per_cpu"}));
  for (const char* key : {"caches", "load_avg", "library_build_type"})
    EXPECT_TRUE(json["context"].contains(key)) << key;
  EXPECT_FALSE(json["context"].contains("json_schema_version"));  // only in later versions

  keys.clear();
  for (const auto& [key, value] : json["benchmarks"][0].items()) keys.push_back(key);
  EXPECT_EQ(
      std::vector(keys.begin(), keys.begin() + 12),
      (std::vector<std::string>{"name", "family_index", "per_family_instance_index", "run_name",
                                "run_type", "repetitions", "repetition_index", "threads",
                                "iterations", "real_time", "cpu_time", "time_unit"}));
  EXPECT_EQ(json["benchmarks"][0]["run_type"], "iteration");
  EXPECT_EQ(json["benchmarks"][0]["time_unit"], "ns");
  EXPECT_EQ(json["benchmarks"][0]["iterations"], 35);
  EXPECT_EQ(json["benchmarks"][0]["bytes"], 8);
  EXPECT_EQ(json["benchmarks"][1]["error_occurred"], true);
  EXPECT_EQ(json["benchmarks"][1]["error_message"], example_record(1, Ruling::fail).reason);
}

TEST_F(RunJson, CountsFamiliesAndRepetitions) {
  RunWriter writer(context_, directory_);
  Record again = example_record(0);
  writer.add(again);
  writer.add(example_record(1));
  writer.add(example_record(2));  // another unit
  again.repetition = 1;
  writer.add(again);
  writer.measured(context_);
  const auto runs = json()["benchmarks"];
  const auto is = [&](int index, int family, int instance, int repetitions, int repetition) {
    EXPECT_EQ(runs[index]["family_index"], family) << index;
    EXPECT_EQ(runs[index]["per_family_instance_index"], instance) << index;
    EXPECT_EQ(runs[index]["repetitions"], repetitions) << index;
    EXPECT_EQ(runs[index]["repetition_index"], repetition) << index;
  };
  is(0, 0, 0, 2, 0);
  is(1, 0, 1, 1, 0);
  is(2, 1, 0, 1, 0);
  is(3, 0, 0, 2, 1);
}

TEST_F(RunJson, OmitsNonFiniteNumbersAndRepairsText) {
  Record record = example_record(0);
  const double nan = std::nan(""), infinite = std::numeric_limits<double>::infinity();
  record.counters["mfu"] = nan;
  record.counters["max_error"] = infinite;
  record.oracles[0].measured = nan;
  record.quantiles.max = -infinite;
  record.cpu_seconds = nan;
  record.losses = {1.5, nan, 2.5};
  record.reason = "bytes \xff\xfe\n\"quoted\"";
  context_.rates["gemm_GFLOPs"] = nan;
  RunWriter writer(context_, directory_);
  writer.add(record);
  EXPECT_EQ(text().find("nan"), std::string::npos);
  EXPECT_EQ(text().find("null"), std::string::npos);
  const auto one = json()["benchmarks"][0];
  EXPECT_FALSE(one.contains("mfu"));
  EXPECT_FALSE(one.contains("max_error"));
  EXPECT_FALSE(one["oracles"]["numerics"].contains("measured"));
  EXPECT_FALSE(one["quantiles_s"].contains("max"));
  EXPECT_EQ(one["losses"].size(), 1u);
  EXPECT_EQ(one["reason"], "bytes \xef\xbf\xbd\xef\xbf\xbd\n\"quoted\"");
  EXPECT_EQ(read_run(directory_).records.size(), 1u);
}

// The state on disk after a kill: samples and a trace of a torn case, without its record.
TEST_F(RunJson, AContinuedRunEqualsAnUninterruptedOne) {
  context_.words = {"run", "all_reduce"};
  RunContext complete = context_;
  complete.status = "complete";
  const auto write = [&](RunWriter& writer, int first, int last) {
    for (int i = first; i < last; ++i) writer.add(example_record(i % 4, Ruling::pass));
  };
  const std::string whole = folder_.path("whole");
  {
    RunWriter writer(context_, whole);
    write(writer, 0, 6);
    writer.finish(complete);
  }
  {
    RunWriter writer(context_, directory_);
    write(writer, 0, 3);
    std::ofstream(directory_ + "/samples.bin", std::ios::app) << "torn samples";
    std::ofstream(directory_ + "/trace.json", std::ios::app)
        << ",\n{\"case\":3,\"pid\":1,\"tid\":1000,\"na";
    EXPECT_THROW(RunWriter(context_, directory_, true), machine::MachineError);  // a writer is open
  }
  EXPECT_EQ(read_finished(directory_).records.size(), 3u);
  complete.resumed = {"2026-11-22T00:00:00+00:00"};
  {
    RunWriter writer(complete, directory_, true);
    write(writer, 3, 6);
    writer.finish(complete);
  }
  const auto read = [](const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  for (const char* file : {"/samples.bin", "/trace.json"})
    EXPECT_EQ(read(directory_ + file), read(whole + file)) << file;
  auto one = json(), other = Json::parse(read(whole + "/run.json"));
  EXPECT_EQ(one["context"]["resumed"].size(), 1u);
  one["context"].erase("resumed");
  for (auto* times : {&one, &other})
    for (const char* key : {"date", "load_avg"}) (*times)["context"].erase(key);
  EXPECT_EQ(one.dump(1), other.dump(1));
  EXPECT_EQ(Json::parse(read(whole + "/trace.json"))["traceEvents"].size(),
            6u * 3 + 4);  // plus names
}

TEST_F(RunJson, AnOlderRunLeavesNothingBehind) {
  { RunWriter(context_, directory_).add(example_record(0)); }
  std::ofstream(directory_ + "/report.html") << "old";
  std::ofstream(directory_ + "/notes.txt") << "the user's";
  fs::create_directory(directory_ + "/figures");
  RunWriter writer(context_, directory_);
  EXPECT_FALSE(fs::exists(directory_ + "/report.html"));
  EXPECT_FALSE(fs::exists(directory_ + "/figures"));
  EXPECT_TRUE(fs::exists(directory_ + "/notes.txt"));
}

TEST_F(RunJson, AFileInThePlaceOfTheFolderIsAUsageError) {
  folder_.put("file", "x");
  const std::string file = folder_.path("file");
  const std::string message = message_of([&] { RunWriter(context_, file); });
  EXPECT_NE(message.find("cannot write to " + file + ": "), std::string::npos) << message;
  const std::string below = message_of([&] { RunWriter(context_, file + "/run"); });
  EXPECT_NE(below.find(file + "/run: Not a directory"), std::string::npos) << below;
  EXPECT_NE(message_of([&] { RunWriter(context_, ""); }).find("no name"), std::string::npos);
}

TEST_F(RunJson, ASystemErrorIsAMachineError) {
  try {
    RunWriter(context_, "/proc/run");
    FAIL() << "nothing can be made in /proc";
  } catch (const machine::MachineError& error) {
    EXPECT_NE(std::string(error.what()).find("cannot write to /proc/run: "), std::string::npos)
        << error.what();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("cannot write to /proc/run: "), std::string::npos)
        << error.what();
  }
}

TEST_F(RunJson, LocatesErrorsInForeignAndTruncatedFiles) {
  EXPECT_EQ(message_of([&] { read_run(folder_.path()); }),
            folder_.path() + " is not a run: it contains no run.json");
  EXPECT_EQ(message_of([&] { read_run(folder_.path("none")); }),
            "no run at " + folder_.path("none"));
  RunWriter writer(context_, directory_);
  writer.add(example_record(0));
  writer.add(example_record(1));
  context_.status = "complete";
  writer.finish(context_);
  const std::string whole = text(), path = directory_ + "/run.json";

  put(whole.substr(0, whole.size() / 2));
  EXPECT_NE(message_of([&] { read_run(path); }).find(path + " is cut off or not JSON: line "),
            std::string::npos);
  put(R"({"context": {"date": "x"}, "benchmarks": []})");
  EXPECT_NE(message_of([&] { read_run(path); }).find("was not written by shardmark"),
            std::string::npos);
  put(R"({"context": {"schema": "shardmark-run/9"}, "benchmarks": []})");
  EXPECT_NE(message_of([&] { read_run(path); }).find("has schema \"shardmark-run/9\""),
            std::string::npos);
  put(R"([1, 2])");
  EXPECT_NE(message_of([&] { read_run(path); }).find("is not a run"), std::string::npos);

  auto broken = Json::parse(whole);
  broken["benchmarks"][1]["verdict"] = "maybe";
  put(broken.dump());
  EXPECT_NE(message_of([&] { read_run(path); }).find("benchmarks[1]: verdict is \"maybe\""),
            std::string::npos);
  broken["benchmarks"][1].erase("verdict");
  put(broken.dump());
  EXPECT_NE(message_of([&] { read_run(path); }).find("benchmarks[1]: "), std::string::npos);

  broken = Json::parse(whole);
  broken["benchmarks"][0]["link_matrix"]["slow_pairs"][0]["to"] = 3;
  put(broken.dump());
  EXPECT_NE(message_of([&] { read_run(path); }).find("benchmarks[0]: a slow pair has rank 3 of 3"),
            std::string::npos);
  put(R"({"context": {"schema": "shardmark-run/2", "rates": {"a": 1e999}}, "benchmarks": []})");
  EXPECT_NE(message_of([&] { read_run(path); }).find("contains a number that is too large"),
            std::string::npos);
  put(R"({"context": {"schema": )" + std::string(1'000'000, '['));
  EXPECT_NE(message_of([&] { read_run(path); }).find("nested more than"), std::string::npos);

  put(whole);
  fs::resize_file(directory_ + "/samples.bin", fs::file_size(directory_ + "/samples.bin") - 8);
  const std::string cut = message_of([&] { read_run(path); });
  EXPECT_NE(cut.find("samples.bin is cut off: " + example_record(1).name), std::string::npos)
      << cut;
  fs::remove(directory_ + "/samples.bin");  // a baseline may be kept without its samples
  EXPECT_EQ(read_run(path).records.size(), 2u);
}

}  // namespace
}  // namespace harness
