#include "harness/unit/launch_ranks.h"

#include <gtest/gtest.h>

#include <set>

#include "harness/unit/sweep.h"

namespace harness {
namespace {

using enum machine::Device::Kind;
using Ranks = std::vector<int>;

// The cases of older records have these machines' numbers of ranks.
TEST(LaunchRanks, SmallMachinesKeepTheirCases) {
  for (int ranks = 1; ranks <= 8; ++ranks) EXPECT_EQ(launch_ranks(Ranks{ranks}, host), Ranks{});
  EXPECT_EQ(launch_ranks(Ranks{}, host), Ranks{});
  EXPECT_EQ(launch_ranks(Ranks{1}, cuda), Ranks{});
}

TEST(LaunchRanks, AllRanksOfAHostAndOfTheLaunchWork) {
  EXPECT_EQ(launch_ranks(Ranks{96}, host), Ranks{96});
  EXPECT_EQ(launch_ranks(Ranks{8}, cuda), Ranks{8});
  EXPECT_EQ(launch_ranks(Ranks(128, 8), cuda), (Ranks{8, 1024}));
  EXPECT_EQ(launch_ranks(Ranks{2, 2}, host), (Ranks{2, 4}));
  EXPECT_EQ(launch_ranks(Ranks{8, 4}, cuda), (Ranks{8, 12}));
  EXPECT_EQ(launch_ranks(Ranks{1, 1, 1}, host), Ranks{3});
}

TEST(LaunchRanks, OfAWorldAreThoseOfItsHosts) {
  machine::run_ranks(3, [](machine::World& world) {
    EXPECT_EQ(launch_ranks(world, host), Ranks{});
    EXPECT_EQ(launch_ranks(world, cuda), Ranks{3});
  });
}

TEST(LaunchRanks, ReachTheRanksAsText) {
  EXPECT_EQ(parse_launch_ranks(launch_ranks_text({8, 1024})), (Ranks{8, 1024}));
  EXPECT_EQ(parse_launch_ranks(launch_ranks_text({})), Ranks{});
  EXPECT_THROW(parse_launch_ranks("8;9"), UsageError);
}

struct Case {
  int ranks = 2;
  std::string kernel;
};

std::set<int> ranks_of(const PlanRequest& request) {
  Sweep<Case> sweep;
  sweep.axis("kernel", &Case::kernel, "copy", {"copy", "add"})
      .axis("ranks", &Case::ranks, 2)
      .slice({Profile::quick}, "ranks", {vary(&Case::ranks, {1, 2})})
      .launch_slice(request, {Profile::quick}, {vary(&Case::kernel, {"copy", "add"})});
  std::set<int> ranks;
  for (const auto& one : sweep.cases(request.profile, request.flags)) {
    ranks.insert(one.the_case.ranks);
    if (request.flags.empty() && one.the_case.ranks > 2) {
      EXPECT_EQ(one.slice, "launch");
    }
  }
  return ranks;
}

TEST(LaunchRanks, ASliceHasThem) {
  PlanRequest request;
  EXPECT_EQ(ranks_of(request), (std::set{1, 2}));
  request.launch_ranks = {8, 16};
  EXPECT_EQ(ranks_of(request), (std::set{1, 2, 8, 16}));
  request.flags = {{"ranks", "4"}};
  EXPECT_EQ(ranks_of(request), std::set{4});
}

}  // namespace
}  // namespace harness
