#include "collectives/prove.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "collectives/algorithms/direct.h"
#include "collectives/algorithms/direct_one_step.h"
#include "collectives/algorithms/ring.h"

namespace collectives {
namespace {

class EveryAlgorithm : public testing::TestWithParam<Algorithm> {};

TEST_P(EveryAlgorithm, IsRightForEveryRankCountTo64) {
  const Algorithm& algorithm = GetParam();
  for (int ranks = 1; ranks <= 64; ++ranks)
    for (const int pieces : {1, 3, 32})
      for (const bool in_place : {false, true}) {
        // Divisible and not, and fewer elements than chunks.
        const std::int64_t counts[] = {64LL * 63 * ranks, 1009, 5};
        for (const std::int64_t count : counts) {
          if (pieces == 32 && ranks > 8) continue;
          if (pieces == 3 && ranks > 16 && ranks % 8 != 5)
            continue;  // pieces repeat the pattern; sampled above 16
          const Proof proof = prove(algorithm, ranks, pieces, count, in_place);
          const Plan plan = algorithm.plan(0, ranks, pieces);
          // What lets ranks hold a parameter at different places: only the ring's order depends on
          // it.
          ASSERT_EQ(proof.one_order, algorithm.name != "ring" || ranks <= 2 ||
                                         algorithm.operation == machine::Operation::all_gather);
          for (int rank = 0; rank < ranks; ++rank) {
            ASSERT_EQ(proof.sent_elements[static_cast<std::size_t>(rank)],
                      ranks == 1 ? 0 : algorithm.sent_elements(rank, ranks, count))
                << "rank " << rank << " of " << ranks << ", " << count << " elements";
            ASSERT_EQ(proof.sent_messages[static_cast<std::size_t>(rank)],
                      algorithm.sent_messages(ranks, plan.pieces));
          }
        }
      }
}

INSTANTIATE_TEST_SUITE_P(Collectives, EveryAlgorithm, testing::ValuesIn(algorithms()),
                         [](const auto& info) {
                           return std::string(machine::name(info.param.operation)) + "_" +
                                  std::string(info.param.name);
                         });

// ---- Broken plans: each must be refused for its own reason.

std::string refusal(Plan (*plan)(int, int, int), bool in_place = false) {
  Algorithm broken = find_algorithm(machine::Operation::all_reduce, "ring");
  broken.plan = plan;
  try {
    prove(broken, 4, 1, 400, in_place);
  } catch (const ProofError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Prover, SeesAForgottenStep) {
  EXPECT_NE(refusal([](int rank, int ranks, int pieces) {
              Plan plan = ring::all_reduce(rank, ranks, pieces);
              if (rank == 2) plan.steps.pop_back();
              return plan;
            }).find("never receives"),
            std::string::npos);
}

TEST(Prover, SeesAWaitThatNeverEnds) {
  EXPECT_NE(refusal([](int rank, int ranks, int pieces) {
              Plan plan = ring::all_reduce(rank, ranks, pieces);
              std::rotate(plan.steps.begin(), plan.steps.begin() + 1,
                          plan.steps.end());  // receive before send
              return plan;
            }).find("waits forever"),
            std::string::npos);
}

TEST(Prover, SeesAWrongShare) {
  EXPECT_NE(refusal([](int rank, int ranks, int pieces) {
              Plan plan = ring::all_reduce(rank, ranks, pieces);
              if (rank == 1) plan.steps[1].source.first = (plan.steps[1].source.first + 1) % ranks;
              return plan;
            }).find("adds chunk"),
            std::string::npos);
}

TEST(Prover, SeesADoubleContribution) {
  EXPECT_NE(refusal([](int rank, int ranks, int pieces) {
              Plan plan = ring::all_reduce(rank, ranks, pieces);
              for (Step& step : plan.steps)
                if (step.verb == Verb::receive)
                  step = receive_reduce(step.peer, input(step.target.first), step.target);
              return plan;
            }).find("counts a contribution twice"),
            std::string::npos);
}

TEST(Prover, SeesAReadOfNothing) {
  EXPECT_NE(refusal([](int rank, int ranks, int pieces) {
              Plan plan = ring::all_reduce(rank, ranks, pieces);
              plan.steps.front().source.buffer = Buffer::output;
              return plan;
            }).find("not written"),
            std::string::npos);
}

// Each rank starting from its own input is right in value, but the bits of ranks would differ.
TEST(Prover, SeesOrdersThatDiffer) {
  EXPECT_NE(refusal([](int rank, int ranks, int) {
              Plan plan{1, 1, 1, 0, {}};
              for (int i = 1; i < ranks; ++i)
                plan.steps.push_back(send((rank + i) % ranks, input(0)));
              Slice source = input(0);
              for (int i = 1; i < ranks; ++i, source = output(0))
                plan.steps.push_back(receive_reduce((rank + i) % ranks, source, output(0)));
              return plan;
            }).find("different orders"),
            std::string::npos);
}

// Right out of place; in place the output still holds this rank's input.
TEST(Prover, SeesAnInputOverwrittenInPlace) {
  const auto careless = [](int rank, int ranks, int pieces) {
    Plan plan = direct_one_step::all_reduce(rank, ranks, pieces);
    for (Step& step : plan.steps) {
      if (step.source.buffer == Buffer::scratch) step.source.buffer = Buffer::output;
      if (step.target.buffer == Buffer::scratch) step.target.buffer = Buffer::output;
    }
    return plan;
  };
  EXPECT_EQ(refusal(careless, false), "accepted");
  EXPECT_NE(refusal(careless, true), "accepted");
}

// A place that is posted belongs to the peer.
TEST(Prover, SeesAPostedPlaceUsed) {
  const auto careless = [](int rank, int ranks, int pieces) {
    Plan plan = ring::all_reduce(rank, ranks, pieces);
    for (std::size_t i = plan.steps.size(); i-- > 0;)
      if (plan.steps[i].verb == Verb::receive)
        plan.steps.insert(plan.steps.begin(), post(plan.steps[i].peer, plan.steps[i].target));
    return plan;
  };
  EXPECT_NE(refusal(careless, true).find("uses a chunk that it has posted"), std::string::npos)
      << refusal(careless, true);
}

// In place, the sum of a share lands where the input of the same share still lies.
TEST(Prover, SeesAPeerThatWritesBeforeItHasRead) {
  const auto careless = [](int rank, int ranks, int pieces) {
    Plan plan = direct::all_reduce(rank, ranks, pieces);
    // Rank 1 answers with its input before it has taken that of rank 0.
    if (rank != 1) return plan;
    const auto answer = std::ranges::find(plan.steps, send(0, output(1)));
    answer->source = input(1);
    std::rotate(plan.steps.begin(), answer, answer + 1);
    return plan;
  };
  EXPECT_NE(refusal(careless, true), "accepted");
}

TEST(Prover, SeesAPostThatIsNeverReceived) {
  EXPECT_NE(refusal([](int rank, int ranks, int pieces) {
              Plan plan = ring::all_reduce(rank, ranks, pieces);
              plan.steps.insert(plan.steps.begin(), post((rank + 1) % ranks, output(0)));
              return plan;
            }).find("posts what it does not receive"),
            std::string::npos);
}

TEST(Plans, HaveAText) {
  EXPECT_EQ(text(ring::all_gather(1, 3, 1)),
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
