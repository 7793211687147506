#include "collectives/joined_sum.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "collectives/algorithms/direct.h"
#include "collectives/algorithms/ring.h"

namespace collectives {
namespace {

constexpr Slice own = input(0), target = output(0), bay = scratch(0, 0);

Plan plan_of(std::vector<Step> steps) { return {1, 4, 2, std::move(steps)}; }

// "0 1 own 3 -> out": the peers and the own data in order. Empty: no joined sum.
std::string text(const JoinedSum& sum) {
  std::string found;
  for (const Summand& summand : sum.summands)
    found += summand.peer < 0 ? "own " : std::to_string(summand.peer) + " ";
  if (sum.steps > 0)
    found += "-> " + std::string(sum.target.buffer == Buffer::output ? "out" : "bay");
  return found;
}
std::string joined(std::vector<Step> steps) {
  return text(joined_sum(plan_of(std::move(steps)), 0));
}

TEST(JoinedSum, AddsAllRanksOfADirectPlanInOnePass) {
  const auto of_rank = [](int rank) {
    const Plan plan = direct::reduce_scatter({rank, 4, 1});
    for (std::size_t i = 0; i < plan.steps.size(); ++i)
      if (const JoinedSum sum = joined_sum(plan, i); sum.steps > 0) {
        EXPECT_EQ(i + sum.steps, plan.steps.size());
        EXPECT_EQ(sum.target, output(0));
        return text(sum);
      }
    return std::string();
  };
  EXPECT_EQ(of_rank(0), "own 1 2 3 -> out");
  EXPECT_EQ(of_rank(1), "own 0 2 3 -> out");
  EXPECT_EQ(of_rank(2), "0 1 own 3 -> out");
  EXPECT_EQ(of_rank(3), "0 1 2 own -> out");
}

TEST(JoinedSum, NeedsTwoAdditions) {
  EXPECT_EQ(joined({receive_reduce(1, own, target)}), "");
  EXPECT_EQ(joined({receive(1, target), reduce(own, target)}), "");
  EXPECT_EQ(joined({receive(1, target), receive_reduce(2, target, target)}), "");
  EXPECT_EQ(joined({copy(own, target), reduce(bay, target), reduce(bay, target)}), "");
  const Plan lap = ring::all_reduce({0, 8, 1});
  for (std::size_t i = 0; i < lap.steps.size(); ++i) EXPECT_EQ(joined_sum(lap, i).steps, 0u);
}

TEST(JoinedSum, EndsBeforeAStepThatIsNoAdditionToIt) {
  EXPECT_EQ(joined({receive_reduce(1, own, target), receive_reduce(2, target, target),
                    send(3, target), receive_reduce(3, target, target)}),
            "own 1 2 -> out");
  EXPECT_EQ(joined({receive_reduce(1, own, target), receive_reduce(2, target, target),
                    receive_reduce(3, input(1), output(1))}),
            "own 1 2 -> out");
}

// A peer's second message arrives in the place of its first one.
TEST(JoinedSum, TakesOneMessageOfAPeer) {
  EXPECT_EQ(joined({receive_reduce(1, own, target), receive_reduce(2, target, target),
                    receive_reduce(1, target, target)}),
            "own 1 2 -> out");
}

TEST(JoinedSum, DoesNotBeginInAPostedPlace) {
  const auto posted_by = [](int peer) {
    const Plan plan = plan_of({post(peer, target), receive(1, target),
                               receive_reduce(2, target, target), reduce(own, target)});
    return text(joined_sum(plan, 1));
  };
  EXPECT_EQ(posted_by(3), "1 2 own -> out");
  EXPECT_EQ(posted_by(1), "");
}

TEST(JoinedSum, WritesWhatALaterStepReads) {
  const std::vector<Step> sum = {receive_reduce(1, own, bay), receive_reduce(2, bay, bay),
                                 receive_reduce(3, bay, target)};
  const auto then = [&](Step step, Step last = send(1, target)) {
    std::vector<Step> steps = sum;
    steps.insert(steps.end(), {step, last});
    return joined(steps);
  };
  EXPECT_EQ(then(send(1, target)), "own 1 2 3 -> out");
  EXPECT_EQ(then(send(1, bay)), "own 1 2 -> bay");
  EXPECT_EQ(then(copy(scratch(0, 3), output(1))), "own 1 2 -> bay") << "of another length";
  EXPECT_EQ(then(reduce(own, bay)), "own 1 2 -> bay");
  EXPECT_EQ(then(receive(1, bay), send(1, bay)), "own 1 2 3 -> out") << "written first";
  EXPECT_EQ(then(receive(1, scratch(1, 0)), send(1, bay)), "own 1 2 -> bay") << "another bay";
  EXPECT_EQ(joined({receive_reduce(1, own, target), receive_reduce(2, target, target),
                    receive_reduce(3, target, output(1))}),
            "own 1 2 -> out")
      << "the caller reads output[0]";
}

}  // namespace
}  // namespace collectives
