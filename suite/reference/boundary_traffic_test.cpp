#include "suite/reference/boundary_traffic.h"

#include <gtest/gtest.h>

#include "pipeline/execute.h"
#include "pipeline/schedule.h"

namespace suite {
namespace {

// Computed by hand for 4 stages and 8 micro-batches of 10 bytes.
TEST(BoundaryTraffic, MatchesThePapers) {
  const auto sent = [](const pipeline::Placement& placement, int stage) {
    return boundary_traffic(placement, stage, 8, 10).bytes_sent;
  };
  EXPECT_EQ(sent(pipeline::looped(4, 1), 0), 80u);   // 8 forward
  EXPECT_EQ(sent(pipeline::looped(4, 1), 1), 160u);  // 8 each way
  EXPECT_EQ(sent(pipeline::looped(4, 3), 0), 400u);  // 3 chunks forward, 2 backward
  EXPECT_EQ(sent(pipeline::looped(4, 3), 2), 480u);
  EXPECT_EQ(sent(pipeline::v_shaped(4), 0), 160u);
  EXPECT_EQ(sent(pipeline::v_shaped(4), 1), 320u);
  EXPECT_EQ(sent(pipeline::v_shaped(4), 3), 160u);
  EXPECT_EQ(sent(pipeline::bidirectional(4), 0), 80u);
  EXPECT_EQ(sent(pipeline::bidirectional(4), 2), 160u);
  EXPECT_EQ(sent(pipeline::looped(1, 4), 0), 0u);
}

// Equals the sum of the messages in every schedule's plan.
TEST(BoundaryTraffic, MatchesTheMessagesOfEverySchedule) {
  const pipeline::Boundary boundary{{3, 5}, machine::Dtype::float32};
  int compared = 0;
  for (const pipeline::Schedule& schedule : pipeline::schedules())
    for (const int stages : {1, 2, 3, 4})
      for (const int micro_batches : {1, 2, 4, 6, 12})
        for (const int chunks : {1, 2, 3}) {
          const pipeline::Size size{stages, micro_batches, chunks};
          if (!schedule.why_not(size).empty()) continue;
          const pipeline::StageSchedules plan = pipeline::all_stages(schedule, size);
          for (int stage = 0; stage < stages; ++stage) {
            EXPECT_EQ(boundary_traffic(plan.placement, stage, micro_batches, boundary.bytes()),
                      pipeline::expected_traffic(plan, stage, boundary))
                << schedule.name << " " << stages << " " << micro_batches << " " << chunks;
            ++compared;
          }
        }
  EXPECT_GT(compared, 100);
}

}  // namespace
}  // namespace suite
