#include "collectives/prove.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

#include "collectives/algorithms/direct.h"
#include "collectives/algorithms/direct_one_step.h"
#include "collectives/algorithms/ring.h"
#include "collectives/layout.h"
#include "collectives/traffic_matrix.h"

namespace collectives {
namespace {

// Sanitizers check the prover's own steps. A few ranks cover all of them.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int most_ranks = 9;
#else
constexpr int most_ranks = 64;
#endif

class EveryAlgorithm : public testing::TestWithParam<Algorithm> {};

// Returns calls with the possible divisors of ranks (hierarchies) and roots (trees): all for few
// ranks, some for many ranks.
std::vector<Call> calls(const Algorithm& algorithm, int ranks) {
  using enum machine::Operation;
  const bool rooted = algorithm.operation == broadcast || algorithm.operation == reduce ||
                      algorithm.operation == gather || algorithm.operation == scatter;
  const bool cares = reads_inner(algorithm);
  std::vector<Call> result;
  for (const int pieces : {1, 3, 32})
    for (int inner = 1; inner <= ranks; ++inner) {
      if (ranks % inner != 0 || (inner > 1 && !cares)) continue;
      for (int root = 0; root < (rooted ? ranks : 1); ++root) {
        // Pieces and roots repeat a pattern, so only some are tested with many ranks.
        if (pieces == 32 && ranks > 8) continue;
        if (pieces == 3 && ranks > 16 && ranks % 8 != 5) continue;
        if (ranks > 9 && root > 1 && root != ranks - 1 && root % 11 != 0) continue;
        if (ranks > 16 && pieces > 1 && (root > 1 || inner > 4)) continue;
        result.push_back({0, ranks, pieces, root, inner});
      }
    }
  return result;
}

// Sizes to prove: divisible, not divisible, and fewer elements than chunks. all_to_all_v has five
// kinds of traffic: even parts, parts of many lengths, mostly empty parts, one hot spot, and no
// data. With mostly empty parts, odd ranks send nothing and the last rank receives nothing.
struct Amount {
  std::int64_t count;
  std::shared_ptr<const TrafficMatrix> traffic{};
};
std::vector<Amount> amounts(machine::Operation operation, int ranks) {
  if (operation != machine::Operation::all_to_all_v) return {{64LL * 63 * ranks}, {1009}, {5}};
  std::int64_t (*const parts[])(int, int, int) = {
      [](int, int, int) -> std::int64_t { return 64 * 63; },
      [](int from, int to, int) -> std::int64_t { return (from * 37 + to * 101) % 211; },
      [](int from, int to, int n) -> std::int64_t {
        return from % 2 == 1 || to == n - 1 || (from + to) % 5 > 0 ? 0 : 1000 + from;
      },
      [](int from, int to, int n) -> std::int64_t { return to == n / 2 ? 100'000 : from % 2; },
      [](int, int, int) -> std::int64_t { return 0; }};
  std::vector<Amount> result;
  for (const auto& part : parts) {
    std::vector<std::int64_t> elements;
    for (int from = 0; from < ranks; ++from)
      for (int to = 0; to < ranks; ++to) elements.push_back(part(from, to, ranks));
    auto traffic = std::make_shared<const TrafficMatrix>(ranks, elements);
    result.push_back({traffic->busiest(), traffic});
  }
  return result;
}

TEST_P(EveryAlgorithm, IsRightForEveryRankCountTo64) {
  const Algorithm& algorithm = GetParam();
  int proved = 0;
  for (int ranks = 1; ranks <= most_ranks; ++ranks)
    for (Call call : calls(algorithm, ranks))
      for (const bool in_place : {false, true}) {
        if (in_place && !may_be_in_place(algorithm.operation)) continue;
        if (!algorithm.refuses(call).empty()) continue;
        for (const auto& [count, traffic] : amounts(algorithm.operation, ranks)) {
          call.traffic = traffic.get();
          const Proof proof = prove(algorithm, call, count, in_place);
          ++proved;
          // Ranks may then store a parameter at different places.
          if (algorithm.one_order) {
            ASSERT_TRUE(proof.one_order) << ranks << " ranks";
          }
          for (int rank = 0; rank < ranks; ++rank) {
            Call own = call;
            own.rank = rank;
            own.pieces = algorithm.plan(own).pieces;
            const Volume& measured = proof.volumes[static_cast<std::size_t>(rank)];
            const Volume formula = algorithm.volume(own, count);
            ASSERT_EQ(measured, formula)
                << "rank " << rank << " of " << ranks << ", root " << call.root << ", inner "
                << call.inner << ", " << own.pieces << " pieces, " << count << " elements: sent "
                << measured.sent << " in " << measured.messages_sent << ", formula " << formula.sent
                << " in " << formula.messages_sent << "; received " << measured.received << " in "
                << measured.messages_received << ", formula " << formula.received << " in "
                << formula.messages_received;
          }
        }
      }
  EXPECT_GT(proved, most_ranks);
}

INSTANTIATE_TEST_SUITE_P(Collectives, EveryAlgorithm, testing::ValuesIn(algorithms()),
                         [](const auto& info) {
                           return std::string(machine::name(info.param.operation)) + "_" +
                                  std::string(info.param.name);
                         });

// ---- Broken plans. The prover must reject each for its own reason.

std::string refusal(Plan (*plan)(const Call&), bool in_place = false) {
  Algorithm broken = find_algorithm(machine::Operation::all_reduce, "ring");
  broken.plan = plan;
  broken.bays = [](const Call&) { return 8; };
  try {
    prove(broken, {0, 4}, 400, in_place);
  } catch (const ProofError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Prover, SeesAForgottenStep) {
  EXPECT_NE(refusal([](const Call& call) {
              Plan plan = ring::all_reduce(call);
              if (call.rank == 2) plan.steps.pop_back();
              return plan;
            }).find("never receives"),
            std::string::npos);
}

TEST(Prover, SeesAWaitThatNeverEnds) {
  EXPECT_NE(refusal([](const Call& call) {
              Plan plan = ring::all_reduce(call);
              std::rotate(plan.steps.begin(), plan.steps.begin() + 1,
                          plan.steps.end());  // receive before send
              return plan;
            }).find("waits forever"),
            std::string::npos);
}

// Rank 0 sums. Rank 2 sends to it only after it has taken rank 1's message.
template <bool joins>
Plan taken_one_by_one(const Call& call) {
  Plan plan{1, 1, 1};
  const Slice kept = scratch(0, 0);
  const Slice first = joins ? output(0) : kept;
  if (call.rank == 0) {
    plan.add(receive_reduce(1, input(0), first));
    plan.add(copy(first, output(0)));
    for (const int peer : {2, 3}) plan.add(receive_reduce(peer, output(0), output(0)));
    for (const int peer : {1, 2, 3}) plan.add(send(peer, output(0)));
    return plan;
  }
  if (call.rank == 1) {
    plan.add(copy(input(0), kept));
    plan.add(send(0, kept));
    plan.add(copy(input(0), kept));  // waits until rank 0 has taken the message
    plan.add(send(2, kept));
  }
  if (call.rank == 2) plan.add(receive(1, kept));
  if (call.rank >= 2) plan.add(send(0, input(0)));
  plan.add(receive(0, output(0)));
  return plan;
}

TEST(Prover, SeesAWaitForAllMessagesOfAJoinedSum) {
  EXPECT_EQ(refusal(taken_one_by_one<false>), "accepted");
  EXPECT_NE(refusal([](const Call& call) {
              Plan plan = taken_one_by_one<true>(call);
              if (call.rank == 0) plan.steps.erase(plan.steps.begin() + 1);  // the copy to itself
              return plan;
            }).find("waits forever"),
            std::string::npos);
}

TEST(Prover, SeesAWrongShare) {
  EXPECT_NE(refusal([](const Call& call) {
              Plan plan = ring::all_reduce(call);
              if (call.rank == 1)
                plan.steps[1].source.first = (plan.steps[1].source.first + 1) % call.ranks;
              return plan;
            }).find("adds chunk"),
            std::string::npos);
}

TEST(Prover, SeesADoubleContribution) {
  EXPECT_NE(refusal([](const Call& call) {
              Plan plan = ring::all_reduce(call);
              for (Step& step : plan.steps)
                if (step.verb == Verb::receive)
                  step = receive_reduce(step.peer, input(step.target.first), step.target);
              return plan;
            }).find("counts a contribution twice"),
            std::string::npos);
}

TEST(Prover, SeesAReadOfUnwrittenData) {
  EXPECT_NE(refusal([](const Call& call) {
              Plan plan = ring::all_reduce(call);
              plan.steps.front().source.buffer = Buffer::output;
              return plan;
            }).find("not written"),
            std::string::npos);
}

// If each rank starts from its own input, the values are correct, but the bits of ranks differ.
TEST(Prover, SeesOrdersThatDiffer) {
  EXPECT_NE(
      refusal([](const Call& call) {
        Plan plan{1, 1, 0, {}};
        for (int i = 1; i < call.ranks; ++i)
          plan.steps.push_back(send((call.rank + i) % call.ranks, input(0)));
        Slice source = input(0);
        for (int i = 1; i < call.ranks; ++i, source = output(0))
          plan.steps.push_back(receive_reduce((call.rank + i) % call.ranks, source, output(0)));
        return plan;
      }).find("different orders"),
      std::string::npos);
}

// Correct out of place. In place, the output still holds this rank's input.
TEST(Prover, SeesAnInputOverwrittenInPlace) {
  const auto careless = [](const Call& call) {
    Plan plan = direct_one_step::all_reduce(call);
    for (Step& step : plan.steps) {
      if (step.source.buffer == Buffer::scratch) step.source.buffer = Buffer::output;
      if (step.target.buffer == Buffer::scratch) step.target.buffer = Buffer::output;
    }
    return plan;
  };
  EXPECT_EQ(refusal(careless, false), "accepted");
  EXPECT_NE(refusal(careless, true), "accepted");
}

// A posted place belongs to the peer.
TEST(Prover, SeesAPostedPlaceUsed) {
  const auto careless = [](const Call& call) {
    Plan plan = ring::all_reduce(call);
    for (std::size_t i = plan.steps.size(); i-- > 0;)
      if (plan.steps[i].verb == Verb::receive)
        plan.steps.insert(plan.steps.begin(), post(plan.steps[i].peer, plan.steps[i].target));
    return plan;
  };
  EXPECT_NE(refusal(careless, true).find("uses a chunk that it has posted"), std::string::npos)
      << refusal(careless, true);
}

// In place, the sum of a share is written to the place that still holds the input of the same
// share.
TEST(Prover, SeesAPeerThatWritesBeforeItHasRead) {
  const auto careless = [](const Call& call) {
    Plan plan = direct::all_reduce(call);
    // Rank 1 sends its input before it has received the input of rank 0.
    if (call.rank != 1) return plan;
    const auto answer = std::ranges::find(plan.steps, send(0, output(1)));
    answer->source = input(1);
    std::rotate(plan.steps.begin(), answer, answer + 1);
    return plan;
  };
  EXPECT_NE(refusal(careless, true), "accepted");
}

TEST(Prover, SeesAPostThatIsNeverReceived) {
  EXPECT_NE(refusal([](const Call& call) {
              Plan plan = ring::all_reduce(call);
              plan.steps.insert(plan.steps.begin(), post((call.rank + 1) % call.ranks, output(0)));
              return plan;
            }).find("posts a place that it does not receive into"),
            std::string::npos);
}

// The chunks of a run are contiguous. If their lengths differ, they do not start at their own bays.
TEST(Prover, SeesABayReadAsAnotherRun) {
  EXPECT_NE(
      refusal([](const Call&) {
        return Plan{1, 2, 2, {copy(input(0, 2), scratch(0, 0, 2)), copy(scratch(1, 1), output(1))}};
      }).find("as another run"),
      std::string::npos);
}

// Each part is correct, but is received into the wrong place.
TEST(Prover, SeesAPartOfAnotherLength) {
  Algorithm broken = find_algorithm(machine::Operation::all_to_all_v, "direct");
  broken.plan = [](const Call& call) {
    Plan plan = direct::all_to_all(call);
    for (Step& step : plan.steps)
      if (step.verb == Verb::receive) step.target.first = call.rank;
    return plan;
  };
  const TrafficMatrix traffic(2, {1, 2, 3, 4});
  try {
    prove(broken, {0, 2, 1, 0, 1, &traffic}, traffic.busiest(), false);
    FAIL();
  } catch (const ProofError& error) {
    EXPECT_NE(std::string(error.what()).find("another number of elements"), std::string::npos);
  }
}

TEST(TrafficMatrix, FindsThePartsInBuffers) {
  const TrafficMatrix traffic(3, {1, 2, 0, 0, 0, 0, 3, 4, 5});
  EXPECT_EQ(traffic(0, 1), 2);
  EXPECT_EQ(traffic.sent_by(1), 0);
  EXPECT_EQ(traffic.received_by(1), 6);
  EXPECT_EQ(traffic.busiest(), 12);
  EXPECT_EQ(traffic.total(), 15);
  const Call call{2, 3, 1, 0, 1, &traffic};
  const Layout layout(machine::Operation::all_to_all_v, direct::all_to_all(call), call, 12);
  EXPECT_EQ(layout.input_elements(), 12);
  EXPECT_EQ(layout.output_elements(), 5);
  EXPECT_EQ(layout.elements(input(1)), (ChunkRange{3, 7}));
  EXPECT_EQ(layout.elements(input(2)), (ChunkRange{7, 12}));
  EXPECT_EQ(layout.elements(output(0)), (ChunkRange{0, 0}));
  EXPECT_EQ(layout.elements(output(2)), (ChunkRange{0, 5}));
  EXPECT_THROW(TrafficMatrix(2, {1, 2, 3}), std::invalid_argument);
  EXPECT_THROW(TrafficMatrix(1, {-1}), std::invalid_argument);
}

TEST(Plans, HaveAText) {
  EXPECT_EQ(text(ring::all_gather({1, 3})),
            "send 2 input[0]; copy input[0] -> output[1]; receive 0 output[0]; send 2 output[0]; "
            "receive 0 output[2]");
}

TEST(Plans, AnUnknownAlgorithmNamesTheNearest) {
  try {
    find_algorithm(machine::Operation::all_gather, "rign");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "unknown all_gather algorithm 'rign'; did you mean 'ring'?");
  }
}

}  // namespace
}  // namespace collectives
