#include "collectives/bind.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/execute.h"
#include "collectives/range_map.h"
#include "collectives/testing/rounds_of_ranks.h"
#include "collectives/traffic_matrix.h"
#include "machine/device/device.h"
#include "machine/world/world.h"

namespace collectives {
namespace {

constexpr std::int64_t count = 1 << 20;

Layout::Site site(std::int64_t begin, std::int64_t end) { return {Buffer::input, {begin, end}}; }

std::string values_in(const RangeMap<int>& map, Layout::Site where) {
  std::string text;
  map.visit(where, [&](int value) { text += std::to_string(value) + " "; });
  return text;
}

TEST(RangeMap, KeepsAValueForEachElement) {
  RangeMap<int> map;
  EXPECT_EQ(values_in(map, site(0, 9)), "0 ");
  map.assign(site(2, 6), 1);
  EXPECT_EQ(values_in(map, site(0, 9)), "0 1 0 ");
  EXPECT_EQ(values_in(map, site(3, 4)), "1 ");
  EXPECT_EQ(values_in(map, site(6, 7)), "0 ");
  map.update(site(4, 8), [](int& value) { value += 10; });
  EXPECT_EQ(values_in(map, site(0, 9)), "0 1 11 10 0 ");
  map.assign(site(1, 8), 5);
  EXPECT_EQ(values_in(map, site(0, 9)), "0 5 0 ");
  map.assign(site(3, 3), 7);  // an empty range
  EXPECT_EQ(values_in(map, site(0, 9)), "0 5 0 ");
  EXPECT_EQ(values_in(map, {Buffer::output, {0, 9}}), "0 ");
}

// A write waits for the sends that read its place, per channel only for the last one. A later write
// of the same place does not wait again.
TEST(Bind, AWriteWaitsForTheSendsOfItsPlaceOnce) {
  Plan plan{1, 4, 0, {}};
  plan.steps = {send(1, output(0, 2)), send(1, output(1)),    send(2, output(0)),
                receive(3, output(0)), receive(3, output(1)), receive(3, output(0))};
  const Layout layout(machine::Operation::all_reduce, plan, {0, 4}, 400);
  const std::vector<Action> actions = bind(plan, layout, false, 4, machine::Store::cached).actions;
  EXPECT_EQ(actions[3].after, (std::vector<std::size_t>{0, 2}));
  EXPECT_EQ(actions[4].after, (std::vector<std::size_t>{1}));
  EXPECT_EQ(actions[5].after, std::vector<std::size_t>());
}

TEST(Bind, PostsCountEarlierMessages) {
  Plan plan{1, 4, 0, {}};
  plan.steps = {post(1, output(2)),    receive(1, output(0)),
                receive(2, output(1)), receive_reduce(1, input(3), output(3)),
                receive(1, output(2)), post(1, output(0)),
                receive(1, output(0))};
  const Layout layout(machine::Operation::all_reduce, plan, {0, 4}, 400);
  const std::vector<Action> actions = bind(plan, layout, false, 4, machine::Store::cached).actions;
  EXPECT_EQ(actions[0].ahead, 3);
  EXPECT_EQ(actions[5].ahead, 1);
  plan.steps.pop_back();
  EXPECT_THROW(bind(plan, layout, false, 4, machine::Store::cached), std::logic_error);
}

TEST(Bind, JoinsSendsOfTheSameData) {
  Plan plan{1, 4, 0, {}};
  plan.steps = {send(1, input(0)), send(2, input(0)), send(3, input(1)),         push(1, input(2)),
                push(2, input(2)), send(2, input(3)), copy(input(0), output(0)), send(3, input(3))};
  const Layout layout(machine::Operation::all_reduce, plan, {0, 4}, 400);
  const std::vector<Action> actions = bind(plan, layout, false, 4, machine::Store::cached).actions;
  EXPECT_EQ(actions[0].to_all, (std::vector<int>{1, 2}));
  EXPECT_EQ(actions[2].to_all, std::vector<int>{3});
  EXPECT_EQ(actions[3].to_all, std::vector<int>());
  EXPECT_EQ(actions[5].to_all, std::vector<int>{2});
  EXPECT_EQ(actions[7].to_all, std::vector<int>{3});
}

TEST(Bind, ASendToAPeerWhoseMessageFollowsLends) {
  Plan plan{1, 4, 0, {}};
  plan.steps = {send(1, input(0)),     receive(1, output(0)),
                send(2, input(1)),     send(1, input(1)),
                send(3, input(2)),     receive_reduce(3, input(3), output(3)),
                receive(2, output(1)), send(3, input(0))};
  const Layout layout(machine::Operation::all_reduce, plan, {0, 4}, 400);
  std::vector<bool> lends;
  for (const Action& action : bind(plan, layout, false, 4, machine::Store::cached).actions)
    lends.push_back(action.lends);
  EXPECT_EQ(lends, (std::vector<bool>{true, false, true, false, true, false, false, false}));
}

TEST(Bind, ReusedDataStaysInTheCache) {
  Plan plan{1, 4, 0, {}};
  plan.steps = {receive(1, output(0)), receive(1, output(1)), copy(input(2), output(2)),
                send(2, output(0, 1)), reduce(input(2), output(2))};
  const Layout layout(machine::Operation::all_reduce, plan, {0, 4}, 400);
  const std::vector<Action> actions =
      bind(plan, layout, false, 4, machine::Store::streaming).actions;
  EXPECT_EQ(actions[0].store, machine::Store::cached);
  EXPECT_EQ(actions[1].store, machine::Store::streaming);
  EXPECT_EQ(actions[2].store, machine::Store::cached);
}

// An addition has fetched the target of a sum in place.
TEST(Bind, SumsBypassTheCacheUnlessInPlaceOrReused) {
  Plan plan{1, 4, 0, {}};
  plan.steps = {receive_reduce(1, input(0), output(0)), receive_reduce(1, input(1), output(1)),
                receive_reduce(2, output(1), output(1)), receive_reduce(1, input(2), output(2)),
                send(1, output(2))};
  const auto stores = [&](bool in_place) {
    const Layout layout(machine::Operation::all_reduce, plan, {0, 4}, 400);
    std::vector<machine::Store> found;
    for (const Action& action : bind(plan, layout, in_place, 4, machine::Store::streaming).actions)
      if (action.verb == Verb::receive_reduce) found.push_back(action.store);
    return found;
  };
  using enum machine::Store;
  EXPECT_EQ(stores(false), (std::vector{streaming, cached, cached, cached}));
  EXPECT_EQ(stores(true), (std::vector{cached, cached, cached, cached}));
}

// A joined sum is one action. Its messages are counted for posts, and its target is stored like any
// other sum's.
TEST(Bind, JoinsAdditions) {
  Plan plan{1, 4, 1, {}};
  plan.steps = {post(3, output(1)),
                receive(1, scratch(0, 0)),
                receive_reduce(3, scratch(0, 0), scratch(0, 0)),
                copy(input(0), output(0)),
                reduce(scratch(0, 0), output(0)),
                receive_reduce(2, output(0), output(0)),
                send(1, output(0)),
                receive(3, output(1))};
  const auto bound = [&](bool in_place, bool joins) {
    const Layout layout(machine::Operation::all_reduce, plan, {2, 4}, 400);
    return bind(plan, layout, in_place, 4, machine::Store::streaming, joins);
  };
  const BoundPlan joined = bound(false, true);
  ASSERT_EQ(joined.actions.size(), 4u);
  EXPECT_EQ(joined.actions[0].ahead, 2) << "after the message in the sum";
  const Action& sum = joined.actions[1];
  std::vector<int> peers;
  for (const Term& term : sum.terms) peers.push_back(term.peer);
  EXPECT_EQ(peers, (std::vector{1, 3, -1, 2}));
  EXPECT_EQ(sum.terms[2].own, (Place{Buffer::input, 0}));
  EXPECT_EQ(sum.target, (Place{Buffer::output, 0}));
  EXPECT_EQ(sum.bytes, 400u);
  EXPECT_EQ(sum.forwards, 1u);
  EXPECT_EQ(sum.store, machine::Store::cached) << "sent afterwards";
  EXPECT_EQ(joined.action_of,
            (std::vector<std::size_t>{0, 1, BoundPlan::no_action, BoundPlan::no_action,
                                      BoundPlan::no_action, BoundPlan::no_action, 2, 3}));
  EXPECT_EQ(bound(false, false).actions.size(), plan.steps.size());
  plan.steps.erase(plan.steps.begin() + 6);  // the send
  EXPECT_EQ(bound(false, true).actions[1].store, machine::Store::streaming);
  EXPECT_EQ(bound(true, true).actions[1].store, machine::Store::cached) << "in place";
}

// Own data that a joined sum reads later stays in the cache, wherever it is among the summands.
TEST(Bind, KeepsAllOwnDataOfAJoinedSum) {
  Plan plan{1, 4, 0, {}};
  plan.steps = {receive(1, output(0)), receive(1, output(1)),
                receive_reduce(2, output(0), output(2)), reduce(output(1), output(2))};
  const Layout layout(machine::Operation::all_reduce, plan, {2, 4}, 400);
  const std::vector<Action> actions =
      bind(plan, layout, false, 4, machine::Store::streaming, true).actions;
  ASSERT_EQ(actions.size(), 3u);
  EXPECT_EQ(actions[0].store, machine::Store::cached);
  EXPECT_EQ(actions[1].store, machine::Store::cached);
}

// The work of binding grows with the plan, not with its square.
TEST(Bind, VisitsFewPiecesPerStep) {
  for (const Algorithm& algorithm : algorithms())
    for (const int ranks : {8, 64, 512}) {
      std::shared_ptr<TrafficMatrix> traffic;
      const auto n = static_cast<std::size_t>(ranks);
      if (algorithm.operation == machine::Operation::all_to_all_v)
        traffic = std::make_shared<TrafficMatrix>(ranks, std::vector<std::int64_t>(n * n, 3));
      const Call call{ranks / 2, ranks, 2, 0, 8, traffic.get()};
      const Plan plan = algorithm.plan(call);
      const Layout layout(algorithm.operation, plan, call, count);
      const BoundPlan bound = bind(plan, layout, false, 4, machine::Store::streaming, true);
      EXPECT_LE(bound.visited, 6 * plan.steps.size() + 6 * n)
          << machine::name(algorithm.operation) << " by " << algorithm.name << " among " << ranks;
    }
}

// An Execution needs only its own rank's plan, so each of thousands of ranks can build its own.
TEST(Execution, PlansForItsOwnRankOnly) {
  static std::vector<int> planned;
  planned.clear();
  Algorithm direct = find_algorithm(machine::Operation::all_reduce, "direct");
  direct.plan = [](const Call& call) {
    planned.push_back(call.rank);
    return find_algorithm(machine::Operation::all_reduce, "direct").plan(call);
  };
  const auto device = machine::make_host_device();
  const Execution execution({&direct, count}, 100, 4096, device->stream());
  EXPECT_FALSE(planned.empty());
  for (const int rank : planned) EXPECT_EQ(rank, 100);
}

class ByWorld final : public Agreement {
 public:
  explicit ByWorld(machine::World& world) : world_(world) {}
  void send(int peer, Number number) override { world_.send(peer, number); }
  std::optional<Number> receive(int peer) override { return world_.receive<Number>(peer); }

 private:
  machine::World& world_;
};

// Each rank uses only its own plan. Together the ranks find the same rounds as a function that sees
// all plans.
TEST(Rounds, RanksAgreeKnowingOnlyTheirOwnPlans) {
  for (const Algorithm& algorithm : algorithms())
    for (const int ranks : {2, 5}) {
      if (algorithm.operation == machine::Operation::all_to_all_v) continue;  // all_to_all's plans
      Call call{0, ranks, 3, ranks - 1, 1};
      if (!algorithm.refuses(call).empty()) continue;
      call.pieces = algorithm.plan(call).pieces;
      const auto all = rounds_of_ranks(algorithm, call, 1009);
      machine::run_ranks(ranks, [&](machine::World& world) {
        Call own = call;
        own.rank = world.rank();
        ByWorld agreement(world);
        const std::vector<Round> mine = rounds_of(algorithm, own, 1009, agreement);
        const std::vector<Round>& expected = all[static_cast<std::size_t>(own.rank)];
        ASSERT_EQ(mine.size(), expected.size()) << algorithm.name;
        for (std::size_t i = 0; i < mine.size(); ++i) {
          EXPECT_EQ(mine[i].transfers, expected[i].transfers) << algorithm.name;
          EXPECT_EQ(mine[i].then, expected[i].then) << algorithm.name;
        }
      });
    }
}

TEST(Rounds, ADeadlockingPlanHasNoRounds) {
  Algorithm broken = find_algorithm(machine::Operation::all_reduce, "ring");
  broken.plan = [](const Call& call) {
    Plan plan{1, 1, 0, {}};
    plan.steps = {receive(1 - call.rank, output(0)), send(1 - call.rank, output(0))};
    return plan;
  };
  EXPECT_THROW(rounds_of_ranks(broken, {0, 2}, 100), std::logic_error);
}

}  // namespace
}  // namespace collectives
