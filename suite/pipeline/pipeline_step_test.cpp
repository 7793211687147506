// The schedules that pipeline_step runs and rejects.

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "suite/testing/on_threads.h"

namespace suite {
namespace {

TEST(PipelineStep, RunsEverySchedule) {
  std::set<std::string> schedules;
  for (const auto& planned : harness::plan_cases({"pipeline_step"}, {harness::Profile::smoke}))
    schedules.insert(planned.axes.front().second);
  EXPECT_EQ(schedules.size(), 7u);
}

TEST(PipelineStep, RejectsMicroBatchesNotDivisibleByStages) {
  EXPECT_EQ(on_threads::refusal("pipeline_step", {{"schedule", "interleaved_1f1b"},
                                                  {"virtual_stages", "2"},
                                                  {"ranks", "4"},
                                                  {"micro_batches", "6"}}),
            "schedule interleaved_1f1b with 4 stages, 6 micro-batches and 2 chunks per "
            "stage requires m % p == 0 (unit pipeline_step)");
}

}  // namespace
}  // namespace suite
