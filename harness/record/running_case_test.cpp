#include "harness/record/running_case.h"

#include <gtest/gtest.h>

#include "harness/record/run_json.h"
#include "harness/testing/test_folder.h"

namespace harness {
namespace {

const machine::Failure died{
    .kind = machine::Failure::Kind::lost_rank, .rank = 0, .text = "it died"};
constexpr auto name = "gpt_step/model-args:--num-layers 4/ranks:2";

TEST(RunningCase, ExistsUntilTheRunEnds) {
  const TestFolder folder;
  RunContext context;
  EXPECT_FALSE(running_case(folder.path()));
  say_running(folder.path(), "gemm/ranks:1");
  say_running(folder.path(), name);
  const auto found = running_case(folder.path());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->name, name);
  EXPECT_TRUE(found->process.starts_with("rank 0 (pid ")) << found->process;
  say_none_runs(folder.path());
  EXPECT_FALSE(running_case(folder.path()));
  for (const char* torn : {"", "rank 0 (pid 7", "rank 0 (pid 7 on node1)\n"}) {
    folder.put("running", torn);
    EXPECT_FALSE(running_case(folder.path())) << torn;
  }
  // A killed run leaves the file. The next run or the report of the loss then removes it. Without a
  // run in the folder, a file of that name is foreign and is kept.
  { RunWriter(context, folder.path()); }
  EXPECT_EQ(folder.text("running"), "rank 0 (pid 7 on node1)\n");
  say_running(folder.path(), name);
  { RunWriter(context, folder.path()); }
  EXPECT_FALSE(running_case(folder.path()));
  say_running(folder.path(), name);
  mark_aborted(folder.path(), died, lost_record(name, died));
  EXPECT_FALSE(running_case(folder.path()));
  EXPECT_EQ(read_run(folder.path()).records.at(0).name, name);
}

TEST(LostRecord, NamesTheCaseOrTheLaunch) {
  const Record record = lost_record(name, died);
  EXPECT_EQ(record.unit, "gpt_step");
  EXPECT_EQ(record.name, name);
  EXPECT_EQ(record.axes, (decltype(record.axes){{"model-args", "--num-layers 4"}, {"ranks", "2"}}));
  EXPECT_EQ(record.verdict, Ruling::fail);
  EXPECT_EQ(record.reason, "it died");
  EXPECT_EQ(record.failure, died);
  EXPECT_EQ(lost_record("", died).name, "launch");
}

}  // namespace
}  // namespace harness
