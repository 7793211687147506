// The text forms of schedules and placements. They are constexpr, but Clang cannot evaluate the
// strings of libstdc++ 12 at compile time.

#include <gtest/gtest.h>

#include "pipeline/placement.h"
#include "pipeline/schedule.h"

namespace pipeline {
namespace {

TEST(Notation, ScheduleIsReadAndWritten) {
  const std::string written = "F0 F10.2 I0 W0 B10.2";
  EXPECT_EQ(text(parse(written)), written);
}

TEST(Notation, PlacementNamesStageAndChunkOfEachPart) {
  EXPECT_EQ(text(looped(3, 2)), "0 1 2 0.1 1.1 2.1");
  EXPECT_EQ(text(v_shaped(3)), "0 1 2 2.1 1.1 0.1");
  EXPECT_EQ(text(bidirectional(3)), "0 1 2 | 2.1 1.1 0.1");
}

}  // namespace
}  // namespace pipeline
