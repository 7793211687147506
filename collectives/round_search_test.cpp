#include "collectives/round_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>

#include "collectives/plan.h"

namespace collectives {
namespace {

// Peers that are always ready. Counts the numbers that a rank sends.
class ReadyPeers final : public Agreement {
 public:
  void send(int, Number) override { ++sent_; }
  std::optional<Number> receive(int peer) override {
    bool& sends = sends_[peer];
    sends = !sends;
    return Number{sends, 1};
  }
  std::size_t sent() const { return sent_; }

 private:
  std::size_t sent_ = 0;
  std::map<int, bool> sends_;
};

// A rank plans only its own steps. Their number, their dependencies and the numbers exchanged grow
// with the ranks, not with their square, so that a launch of 1024 ranks can plan over nccl.
TEST(RoundSearch, ThePlanningOfARankIsLinearInTheRanks) {
  for (const machine::Operation operation :
       {machine::Operation::all_reduce, machine::Operation::all_gather,
        machine::Operation::reduce_scatter})
    for (const char* name : {"ring", "direct"})
      for (const std::size_t ranks : {8, 128, 1024})
        for (const std::size_t rank : {std::size_t{0}, ranks / 2, ranks - 1}) {
          SCOPED_TRACE(testing::Message() << machine::name(operation) << " by " << name << ", rank "
                                          << rank << " of " << ranks);
          const Algorithm& algorithm = find_algorithm(operation, name);
          const Call call{static_cast<int>(rank), static_cast<int>(ranks), 1, 0, 1};
          const auto count = static_cast<std::int64_t>(4 * ranks);
          const Plan plan = algorithm.plan(call);
          EXPECT_LE(plan.steps.size(), 8 * ranks);

          const StepOrder order(operation, plan, Layout(operation, plan, call, count));
          std::size_t dependencies = 0;
          for (std::size_t i = 0; i < plan.steps.size(); ++i)
            dependencies += order.before(i).size();
          EXPECT_LE(dependencies, 3 * plan.steps.size());

          ReadyPeers peers;
          RoundSearch search(algorithm, call, count);
          ASSERT_TRUE(search.go_on(peers));
          const auto transfers = static_cast<std::size_t>(
              std::ranges::count_if(plan.steps, [](const Step& step) { return moves(step.verb); }));
          EXPECT_EQ(peers.sent(), transfers);
        }
}

// A rank does not know whether another rank calls in place.
TEST(RoundSearch, ACallHasTheSameStepsInPlace) {
  for (const Algorithm& algorithm : algorithms())
    for (int ranks = 1; ranks <= 9; ++ranks)
      for (int rank = 0; rank < ranks; ++rank) {
        Call call{rank, ranks};
        if (!algorithm.refuses(call).empty()) continue;
        const Plan apart = algorithm.plan(call);
        call.in_place = true;
        const Plan in_place = algorithm.plan(call);
        const auto same = [](const Step& a, const Step& b) {
          return a.verb == b.verb && a.peer == b.peer;
        };
        EXPECT_TRUE(std::ranges::equal(apart.steps, in_place.steps, same))
            << machine::name(algorithm.operation) << " by " << algorithm.name << ", rank " << rank
            << " of " << ranks;
      }
}

}  // namespace
}  // namespace collectives
