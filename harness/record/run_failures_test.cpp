// Failures in run.json, and runs that a lost rank ended.

#include <gtest/gtest.h>

#include <fstream>
#include <memory>

#include "harness/json/json.h"
#include "harness/record/run_json.h"
#include "harness/testing/example_records.h"
#include "harness/testing/test_folder.h"
#include "machine/base/error.h"

namespace harness {
namespace {

class RunFailures : public testing::Test {
 protected:
  Json json() const { return Json::parse(read_bytes(directory_ + "/run.json")); }

  TestFolder folder_;
  const std::string directory_ = folder_.path("run");
  RunContext context_{"quick", "shardmark run --ranks 3", "", "running", "", {}};
};

machine::Failure lost(int rank) {
  return {.kind = machine::Failure::Kind::lost_rank,
          .rank = rank,
          .text = std::to_string(rank) + " died"};
}

TEST_F(RunFailures, AFailureKeepsItsFields) {
  Record record = example_record(1, Ruling::fail);
  record.failure = {machine::Failure::Kind::disk_full, 3, 1, 17, 2, {}};
  Record alone = example_record(2, Ruling::fail);
  alone.failure = machine::Failure{.kind = machine::Failure::Kind::exception};
  {
    RunWriter writer(context_, directory_);
    writer.add(record);
    writer.add(alone);
    writer.add(example_record(3));
  }
  EXPECT_EQ(json()["benchmarks"][0]["failure"],
            Json::parse(
                R"({"kind": "disk_full", "rank": 3, "peer": 1, "sample": 17, "summed_ranks": 2})"));
  EXPECT_EQ(json()["benchmarks"][1]["failure"], Json::parse(R"({"kind": "exception"})"));
  const RunFile run = read_run(directory_);
  EXPECT_EQ(run.records[0].failure, record.failure);
  EXPECT_EQ(run.records[0].oracles[0].rank, record.oracles[0].rank);
  EXPECT_EQ(run.records[1].failure, alone.failure);
  EXPECT_FALSE(run.records[2].failure);
}

// Failures of an older schema are texts.
TEST_F(RunFailures, AnOlderSchemaIsReadAndContinued) {
  context_.words = {"run"};
  { RunWriter(context_, directory_).add(example_record(1, Ruling::fail)); }
  std::string text = read_bytes(directory_ + "/run.json");
  const auto replace = [&text](const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
  };
  replace("shardmark-run/2", "shardmark-run/1");
  replace(R"("failure":{"kind":"wrong_result","rank":2,"peer":0,"sample":7},)", "");
  std::ofstream(directory_ + "/run.json") << text;
  EXPECT_EQ(read_run(directory_).records.at(0).verdict, Ruling::fail);
  EXPECT_FALSE(read_run(directory_).records.at(0).failure);
  RunWriter(context_, directory_, true).add(example_record(2));
  EXPECT_EQ(json()["context"]["schema"], "shardmark-run/2");
  EXPECT_EQ(read_run(directory_).records.size(), 2u);
}

TEST_F(RunFailures, MarksAbortedFromAnotherProcessAndKeepsTheRecords) {
  auto writer = std::make_unique<RunWriter>(context_, directory_);
  writer->add(example_record(0));
  writer->add(example_record(2));
  Record failing = example_record(4, Ruling::fail);
  failing.samples = {};
  writer->abort(lost(2), failing);
  writer->add(example_record(5));  // the writer has no effect after the abort
  writer->finish(context_);
  mark_aborted(directory_, lost(1), failing);

  const RunFile run = read_run(directory_);
  EXPECT_EQ(run.context.status, "aborted");
  EXPECT_EQ(run.context.status_reason, "2 died");
  EXPECT_EQ(json()["context"]["lost_rank"], 2);
  ASSERT_TRUE(run.context.failure);
  EXPECT_EQ(run.context.failure->kind, machine::Failure::Kind::lost_rank);
  EXPECT_EQ(run.context.failure->rank, 2);
  ASSERT_EQ(run.records.size(), 3u);
  EXPECT_EQ(run.records[0].samples.seconds, example_record(0).samples.seconds);
  EXPECT_EQ(run.records[2].name, failing.name);
  EXPECT_EQ(run.records[2].verdict, Ruling::fail);
  EXPECT_EQ(json()["benchmarks"][2]["family_index"], 0);
  EXPECT_EQ(json()["benchmarks"][2]["per_family_instance_index"], 1);

  try {
    RunWriter(context_, directory_);
    ADD_FAILURE() << "two runs in one directory";
  } catch (const machine::MachineError& error) {
    EXPECT_EQ(std::string(error.what()),
              "cannot write to " + directory_ + ": another run is writing there");
  }
  writer.reset();
  RunWriter next(context_, directory_);  // the directory can be reused
  next.add(example_record(1));
  EXPECT_EQ(read_run(directory_).context.status, "running");
}

TEST_F(RunFailures, TheCaseOfALostRankIsRunAgain) {
  context_.words = {"run"};
  {
    RunWriter writer(context_, directory_);
    writer.add(example_record(0));
    writer.add(example_record(1, Ruling::fail));
  }
  EXPECT_EQ(read_finished(directory_).records.size(), 2u);
  Record failing = example_record(2, Ruling::fail);
  failing.samples = {};
  mark_aborted(directory_, lost(2), failing);
  EXPECT_EQ(read_finished(directory_).records.size(), 2u);
  RunWriter writer(context_, directory_, true);
  writer.add(example_record(2));
  EXPECT_EQ(json()["benchmarks"].size(), 3u);
  EXPECT_EQ(json()["benchmarks"][2]["verdict"], "pass");
}

}  // namespace
}  // namespace harness
