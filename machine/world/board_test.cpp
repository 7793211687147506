#include "machine/world/board.h"

#include <gtest/gtest.h>

namespace machine {
namespace {

using Kind = Failure::Kind;

class BoardTest : public testing::Test {
 protected:
  RankStatus statuses_[3];
  std::vector<RankStatus*> all_{&statuses_[0], &statuses_[1], nullptr};
  Board mine_{0, all_}, other_{1, all_};
};

TEST_F(BoardTest, TheCaseIsReadWithoutItsPhase) {
  mine_.set_activity("gemm/ranks:2 (odd)", "running");
  EXPECT_EQ(other_.running_case(0), "gemm/ranks:2 (odd)");
  EXPECT_EQ(other_.activity(0), "gemm/ranks:2 (odd) (running)");
  mine_.set_activity("between cases");
  EXPECT_EQ(other_.running_case(0), "");
  EXPECT_EQ(other_.activity(0), "between cases");
  EXPECT_EQ(mine_.running_case(2), "");
}

TEST_F(BoardTest, AFailureIsReadWithItsKindAndPeer) {
  const Failure timeout{.kind = Kind::timeout, .rank = 0, .peer = 1, .text = "no numbers"};
  EXPECT_EQ(other_.failure(0), std::nullopt);
  mine_.fail(timeout);
  mine_.fail({.kind = Kind::exception, .text = "later"});
  EXPECT_EQ(other_.failure(0), timeout);
  EXPECT_EQ(other_.failed_rank(), 0);
  EXPECT_EQ(mine_.failure(2), std::nullopt) << "on another host";
}

TEST_F(BoardTest, TheFirstExceptionIsTheCauseOfTheFailure) {
  const Failure thrown{.kind = Kind::out_of_memory, .rank = 0, .text = "asked for 8 GiB"};
  mine_.note(thrown);
  EXPECT_EQ(other_.noted(0), thrown);
  EXPECT_EQ(other_.failure(0), std::nullopt) << "it goes on";
  mine_.set_activity("gemm/ranks:2", "judging");
  EXPECT_EQ(other_.noted(0), std::nullopt);
  mine_.note(thrown);
  mine_.fail({.kind = Kind::timeout, .rank = 0, .peer = 1, .text = "it waited"});
  EXPECT_EQ(other_.failure(0), thrown);
  mine_.set_activity("between cases");
  EXPECT_EQ(other_.failure(0), thrown);
}

}  // namespace
}  // namespace machine
