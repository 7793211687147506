// The links between devices, without CUDA and NCCL. Plans split into rounds are proved and run over
// a link with rendezvous sends. The streamed link runs on host memory with streams that run behind
// their callers.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "collectives/cost.h"
#include "collectives/prove.h"
#include "collectives/testing/rounds_of_ranks.h"
#include "machine/link/streamed.h"
#include "machine/testing/meeting_link.h"
#include "machine/testing/queued_device.h"

namespace collectives {
namespace {

using machine::Category;
using machine::Dtype;
using machine::MarkedStreams;
using machine::MeetingLink;
using machine::MeetingPoint;
using machine::Operation;
using machine::queued_link;
using machine::QueuedDevice;
using machine::QueuedNeighbours;
using machine::Reduction;
using machine::Tensor;
using machine::World;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int most_ranks = 6;
constexpr int rank_counts[] = {3};
#else
constexpr int most_ranks = 16;
constexpr int rank_counts[] = {2, 3, 4};
#endif

// Uneven parts, some of them empty.
const TrafficMatrix& traffic(int ranks) {
  static std::map<int, TrafficMatrix> matrices;
  auto found = matrices.find(ranks);
  if (found == matrices.end()) {
    std::vector<std::int64_t> elements;
    for (int i = 0; i < ranks * ranks; ++i) elements.push_back(i * 7 % 5 * 11);
    found = matrices.emplace(ranks, TrafficMatrix(ranks, elements)).first;
  }
  return found->second;
}

std::vector<Call> calls(Operation operation, int ranks) {
  std::vector<Call> all;
  if (operation == Operation::all_to_all_v) return {{0, ranks, 1, 0, 1, &traffic(ranks)}};
  for (const int pieces : {1, 3})
    for (int inner = 1; inner <= ranks; ++inner)
      if (ranks % inner == 0 && (ranks <= 8 || inner * inner <= ranks))
        for (const int root : {0, ranks - 1}) all.push_back({0, ranks, pieces, root, inner});
  return all;
}

// Returns a rank that waits forever, or an empty text. A rank starts its next group when all
// transfers of the previous group are complete. A transfer completes when both ends have started
// it.
std::string left_waiting(const Algorithm& algorithm, const Call& call,
                         const std::vector<std::vector<Round>>& rounds) {
  struct Moving {
    std::size_t round = 0;
    std::map<std::pair<bool, int>, std::deque<std::size_t>>
        open;  // sends, peer: steps of the group
  };
  const auto ranks = static_cast<std::size_t>(call.ranks);
  std::vector<Plan> plans;
  for (int rank = 0; rank < call.ranks; ++rank) {
    Call own = call;
    own.rank = rank;
    plans.push_back(algorithm.plan(own));
  }
  std::vector<Moving> at(ranks);
  const auto begin = [&](std::size_t rank) {
    for (const std::size_t i : rounds[rank][at[rank].round].transfers) {
      const Step& step = plans[rank].steps[i];
      at[rank].open[{step.verb == Verb::send, step.peer}].push_back(i);
    }
  };
  for (std::size_t rank = 0; rank < ranks; ++rank)
    if (!rounds[rank].empty()) begin(rank);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t from = 0; from < ranks; ++from)
      for (std::size_t to = 0; to < ranks; ++to) {
        auto& sends = at[from].open[{true, static_cast<int>(to)}];
        auto& receives = at[to].open[{false, static_cast<int>(from)}];
        for (; !sends.empty() && !receives.empty(); moved = true) {
          sends.pop_front();
          receives.pop_front();
        }
      }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const bool over =
          std::ranges::all_of(at[rank].open, [](const auto& open) { return open.second.empty(); });
      if (!over || at[rank].round >= rounds[rank].size()) continue;
      if (++at[rank].round < rounds[rank].size()) begin(rank);
      moved = true;
    }
  }
  for (std::size_t rank = 0; rank < ranks; ++rank)
    if (at[rank].round < rounds[rank].size())
      return fmt::format("rank {} of {} waits in group {} of {}", rank, ranks, at[rank].round,
                         rounds[rank].size());
  return {};
}

// The rounds of a plan as a plan: sends, receives, then the rest. Algorithm requires a function
// without state.
struct Reordered {
  const Algorithm* algorithm;
  std::int64_t count;
};
Reordered reordered;
Plan in_rounds(const Call& call) {
  Plan plan = reordered.algorithm->plan(call);
  std::vector<Step> steps;
  const std::vector<std::vector<Round>> rounds =
      rounds_of_ranks(*reordered.algorithm, call, reordered.count);
  for (const Round& round : rounds[static_cast<std::size_t>(call.rank)]) {
    for (const bool sends : {true, false})
      for (const std::size_t i : round.transfers)
        if ((plan.steps[i].verb == Verb::send) == sends) steps.push_back(plan.steps[i]);
    for (const std::size_t i : round.then)
      if (plan.steps[i].verb != Verb::receive_reduce) steps.push_back(plan.steps[i]);
  }
  plan.steps = std::move(steps);
  return plan;
}

class Rounds : public testing::TestWithParam<Algorithm> {};

TEST_P(Rounds, NoPlanDeadlocks) {
  const Algorithm& algorithm = GetParam();
  int shown = 0;
  for (int ranks = 1; ranks <= most_ranks; ++ranks)
    for (const Call& call : calls(algorithm.operation, ranks)) {
      if (!algorithm.refuses(call).empty()) continue;
      if (call.pieces > 1 && ranks > 6 && ranks != most_ranks) continue;
      if (call.root != 0 && !has_root(algorithm.operation)) continue;
      const auto rounds = rounds_of_ranks(algorithm, call, 1009);
      ASSERT_EQ(left_waiting(algorithm, call, rounds), "") << call.pieces << " pieces";
      ++shown;
    }
  EXPECT_GT(shown, most_ranks / 4);
}

TEST_P(Rounds, AreRightInTheirOwnOrder) {
  const Algorithm& algorithm = GetParam();
  Algorithm as_rounds = algorithm;
  as_rounds.plan = in_rounds;
  for (const int ranks : {1, 2, 3, 4, 6, 8})
    for (const Call& call : calls(algorithm.operation, ranks))
      for (const bool in_place : {false, true}) {
        if (in_place && !may_be_in_place(algorithm.operation)) continue;
        if (!algorithm.refuses(call).empty() || (ranks > 4 && call.pieces > 1)) continue;
        reordered = {&algorithm, 1009};
        ASSERT_NO_THROW(prove(as_rounds, call, 1009, in_place)) << ranks;
      }
}

INSTANTIATE_TEST_SUITE_P(Collectives, Rounds, testing::ValuesIn(algorithms()),
                         [](const auto& info) {
                           return std::string(machine::name(info.param.operation)) + "_" +
                                  std::string(info.param.name);
                         });

// Groups of a rank without rounds: each receive together with all sends before it.
TEST(Groups, WithAllEarlierSendsDeadlock) {
  const Algorithm& ring = find_algorithm(Operation::all_reduce, "ring");
  const Call call{0, 4, 3};
  std::vector<std::vector<Round>> groups(4);
  for (int rank = 0; rank < 4; ++rank) {
    const Plan plan = ring.plan({rank, 4, 3});
    Round group;
    for (std::size_t i = 0; i < plan.steps.size(); ++i) {
      const Verb verb = plan.steps[i].verb;
      if (verb == Verb::send) group.transfers.push_back(i);
      if (verb != Verb::receive && verb != Verb::receive_reduce) continue;
      group.transfers.push_back(i);
      groups[static_cast<std::size_t>(rank)].push_back(std::exchange(group, {}));
    }
    groups[static_cast<std::size_t>(rank)].push_back(group);
  }
  EXPECT_NE(left_waiting(ring, call, groups), "");
}

// ---- Every algorithm over both links, on whole numbers.

double value(int rank, std::int64_t index) {
  return static_cast<double>((index * 131 + rank * 79 + 1) % 17) - 8;
}

// Results of a communicator over shared memory, which other tests compare with the definition.
std::vector<double> reference(World& world, const Algorithm& algorithm, std::int64_t count,
                              int root) {
  Communicator group(world, world.group(), machine::Transport::shared_memory);
  const Extents held = extents(algorithm.operation, {world.rank(), world.size(), 1, root});
  const auto tensor = [&](Extent extent) {
    const bool all = extent == Extent::whole && deals_in_shares(algorithm.operation);
    return extent == Extent::none ? Tensor()
                                  : Tensor(world.host_device(), Dtype::float32,
                                           {all ? count * world.size() : count}, Category::buffers);
  };
  const Tensor in = tensor(held.input), out = tensor(held.output);
  std::vector<double> values;
  for (std::int64_t i = 0; i < in.size(); ++i) values.push_back(value(world.rank(), i));
  if (in) machine::from_doubles(in, values);
  group.run(algorithm.operation, algorithm.name, in, out, Reduction::sum, root);
  return out ? machine::to_doubles(out) : std::vector<double>();
}

void run_all(World& world, Communicator& group, machine::Device& device, int& wrong) {
  for (const Algorithm& algorithm : algorithms())
    for (const std::int64_t count : {1, 1009, 150'001})  // the last: several pieces per share
      for (const bool in_place : {false, true}) {
        if (count > 2000 && (world.size() > 2 || in_place)) continue;
        const int root = static_cast<int>(count % world.size());
        const Call call{world.rank(), world.size(), 1, root, group.inner()};
        if (algorithm.operation == Operation::barrier || !algorithm.refuses(call).empty()) continue;
        if (algorithm.operation == Operation::all_to_all_v) continue;  // all_to_all's plans
        if (in_place && !may_be_in_place(algorithm.operation)) continue;
        const Extents held = extents(algorithm.operation, call);
        const std::int64_t whole =
            deals_in_shares(algorithm.operation) ? count * world.size() : count;
        const auto tensor = [&](Extent extent) {
          return extent == Extent::none
                     ? Tensor()
                     : Tensor(device, Dtype::float32, {extent == Extent::whole ? whole : count},
                              Category::buffers);
        };
        Tensor in = tensor(held.input), out = tensor(held.output);
        if (in_place && in && out) {
          if (held.input == held.output) out = in;
          if (held.input == Extent::own_share) in = out.slice(world.rank() * count, {count});
          if (held.output == Extent::own_share) out = in.slice(world.rank() * count, {count});
        }
        std::vector<double> values;
        for (std::int64_t i = 0; i < in.size(); ++i) values.push_back(value(world.rank(), i));
        if (in) machine::from_doubles(in, values);
        const std::vector<double> right = reference(world, algorithm, count, root);
        group.link().reset_traffic();
        group.run(algorithm.operation, algorithm.name, in, out, Reduction::sum, root);
        device.stream().synchronize();
        wrong += out && machine::to_doubles(out) != right;
        EXPECT_EQ(group.link().total(), expected_traffic(algorithm, call, count, Dtype::float32))
            << algorithm.name;
        world.barrier(world.group());
      }
}

TEST(MeetingLink, EveryAlgorithmEndsAndIsExact) {
  for (const int ranks : rank_counts) {
    MeetingPoint point;
    machine::run_ranks(ranks, [&](World& world) {
      Communicator group(world, std::make_unique<MeetingLink>(world.group(), point));
      int wrong = 0;
      run_all(world, group, world.host_device(), wrong);
      EXPECT_EQ(wrong, 0);
    });
  }
}

// Returns the number of ranks with a wrong result.
int wrong_on_streams(int ranks, bool careless) {
  std::atomic<int> wrong_ranks{0};
  MarkedStreams marks;
  std::mutex mutex;
  std::vector<std::unique_ptr<QueuedDevice>> devices;  // peers map this memory until the end
  machine::run_ranks(ranks, [&](World& world) {
    auto own = std::make_unique<QueuedDevice>();
    QueuedDevice& device = *own;
    {
      const std::lock_guard lock(mutex);
      devices.push_back(std::move(own));
    }
    Communicator group(world, queued_link(world, device, marks, careless));
    int wrong = 0;
    run_all(world, group, device, wrong);
    wrong_ranks += wrong > 0;
  });
  return wrong_ranks;
}

TEST(StreamedLink, EveryAlgorithmIsExactInStreamOrder) {
  for (const int ranks : rank_counts) EXPECT_EQ(wrong_on_streams(ranks, false), 0) << ranks;
}

// The timing `armed` requires that hosts wait for each other's queueing, never for a stream.
TEST(StreamedLink, QueuesAWholeRunWhileStreamsAreHeldBack) {
  MarkedStreams marks;
  std::vector<QueuedDevice> devices(3);
  std::atomic<bool> open{false};
  machine::run_ranks(
      3,
      [&](World& world) {
        QueuedDevice& device = devices[static_cast<std::size_t>(world.rank())];
        Communicator group(world, queued_link(world, device, marks));
        constexpr std::int64_t count = 100'003;
        for (const std::string_view algorithm : {"ring", "direct", "direct_one_step"}) {
          const Tensor data(device, Dtype::float32, {count}, Category::buffers);
          std::vector<double> mine, sum;
          for (std::int64_t i = 0; i < count; ++i) {
            mine.push_back(value(world.rank(), i));
            sum.push_back(value(0, i) + value(1, i) + value(2, i));
          }
          machine::from_doubles(data, mine);
          open = false;
          world.barrier(world.group());
          device.worker().push([&open] { open.wait(false); });
          group.all_reduce(data, data, algorithm);
          world.barrier(world.group());
          open = true;
          open.notify_all();
          EXPECT_EQ(machine::to_doubles(data), sum) << algorithm;
          world.barrier(world.group());
        }
      },
      5);
}

TEST(StreamedLink, APeerWritesToAPostedPlaceAfterEarlierQueuedWork) {
  MarkedStreams marks;
  std::vector<QueuedDevice> devices(2);
  std::atomic<bool> open{false};
  machine::run_ranks(2, [&](World& world) {
    QueuedDevice& device = devices[static_cast<std::size_t>(world.rank())];
    machine::StreamedLink link(
        world.group(), machine::make_channels(world, world.group()),
        std::make_unique<QueuedNeighbours>(device, marks, world.rank(), false),
        world.wait_policy());
    const Tensor place(device, Dtype::float32, {1000}, Category::buffers);
    const Tensor saved(device, Dtype::float32, {1000}, Category::buffers);
    const std::vector<double> mine(1000, world.rank() == 0 ? 2 : 1);
    machine::from_doubles(place, mine);
    if (world.rank() == 1) {
      device.worker().push([&open] { open.wait(false); });
      device.stream().copy(saved.data(), place.data(), place.bytes());
      link.post(0, 1, place.data(), place.bytes());
    }
    world.barrier(world.group());
    if (world.rank() == 0) {
      void* there = link.posted(1, place.bytes());
      ASSERT_NE(there, nullptr);
      device.stream().copy(there, place.data(), place.bytes());
      link.deliver(1, place.bytes());
      std::this_thread::sleep_for(
          std::chrono::milliseconds(20));  // time for a stream that does not wait
    }
    world.barrier(world.group());
    if (world.rank() == 0) return device.stream().synchronize();
    open = true;
    open.notify_all();
    link.receive(0, place.data(), place.bytes());
    EXPECT_EQ(machine::to_doubles(saved), mine);
    EXPECT_EQ(machine::to_doubles(place), std::vector<double>(1000, 2));
  });
}

#if !defined(__SANITIZE_THREAD__)  // it is a data race
TEST(StreamedLink, IsWrongIfStreamsDoNotWait) { EXPECT_GT(wrong_on_streams(4, true), 0); }
#endif

}  // namespace
}  // namespace collectives
