#include "machine/world/control/tree.h"

#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "machine/base/error.h"
#include "machine/testing/simulated_control.h"
#include "machine/world/control/pipe.h"
#include "machine/world/world.h"

namespace machine::control {
namespace {

int log2_of(int ranks) { return std::bit_width(static_cast<unsigned>(ranks - 1)); }

class OneCall : public testing::TestWithParam<int> {};

TEST_P(OneCall, AllGatherCostsLogarithmicMessagesARank) {
  const int ranks = GetParam();
  SimulatedControl all(ranks);
  all.all_gather([](int index) { return std::to_string(index); },
                 [&](int index, std::string_view gathered) {
                   if (index % 100 != 0 && index != ranks - 1) return;
                   const std::vector<std::string> texts = split(gathered);
                   ASSERT_EQ(texts.size(), static_cast<std::size_t>(ranks));
                   for (const int one : {0, index, ranks - 1})
                     ASSERT_EQ(texts[static_cast<std::size_t>(one)], std::to_string(one));
                 });
  EXPECT_LE(all.most_messages(), 2 * log2_of(ranks));
  EXPECT_EQ(all.total_messages(), 2 * (ranks - 1));
  EXPECT_TRUE(all.all_received());
}

TEST_P(OneCall, BarrierCostsLogarithmicMessagesARank) {
  const int ranks = GetParam();
  SimulatedControl all(ranks);
  all.barrier();
  EXPECT_LE(all.most_messages(), 2 * log2_of(ranks));
  EXPECT_EQ(all.total_messages(), 2 * (ranks - 1));
  EXPECT_TRUE(all.all_received());
}

TEST_P(OneCall, BroadcastCostsLogarithmicMessagesARank) {
  const int ranks = GetParam();
  for (const int root : {0, 1, ranks / 2, ranks - 1}) {
    SimulatedControl all(ranks);
    all.broadcast(root, "text", [](int, std::string_view text) { ASSERT_EQ(text, "text"); });
    EXPECT_LE(all.most_messages(), log2_of(ranks));
    EXPECT_EQ(all.total_messages(), ranks - 1);
    EXPECT_TRUE(all.all_received());
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, OneCall, testing::Values(2, 3, 8, 13, 64, 512, 4096),
                         testing::PrintToStringParamName());

TEST(BinomialTree, EveryMemberHasOneParent) {
  for (const int size : {1, 2, 3, 7, 8, 21})
    for (int root = 0; root < size; ++root) {
      std::vector<int> parents(static_cast<std::size_t>(size), -1);
      for (int index = 0; index < size; ++index)
        for (const int child : binomial_tree(size, index, root).children) {
          EXPECT_EQ(parents[static_cast<std::size_t>(child)], -1);
          parents[static_cast<std::size_t>(child)] = index;
        }
      for (int index = 0; index < size; ++index)
        EXPECT_EQ(binomial_tree(size, index, root).parent, parents[static_cast<std::size_t>(index)])
            << index << " of " << size << " below " << root;
      EXPECT_EQ(parents[static_cast<std::size_t>(root)], -1);
    }
}

// Texts shorter and longer than a pipe's ring, in parts that wrap around its end.
TEST(Pipe, TextsOfEveryLengthArriveInOrder) {
  run_ranks(3, [](World& world) {
    const int rank = world.rank();
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, std::size_t{Pipe::capacity} - 8,
          std::size_t{Pipe::capacity}, 3 * std::size_t{Pipe::capacity} + 5})
      for (int lap = 0; lap < 20; ++lap) {
        const std::string mine(size + static_cast<std::size_t>(rank),
                               static_cast<char>('a' + (lap + rank) % 26));
        const auto all = world.all_gather(world.group(), mine);
        for (int peer = 0; peer < 3; ++peer)
          ASSERT_EQ(all[static_cast<std::size_t>(peer)],
                    std::string(size + static_cast<std::size_t>(peer),
                                static_cast<char>('a' + (lap + peer) % 26)));
      }
  });
}

// Ranks without work wait for their next case without a timeout.
TEST(Pipe, AWaitHasNoTimeoutWhileAllRanksRun) {
  run_ranks(
      2,
      [](World& world) {
        if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
        world.barrier(world.group());
      },
      0.1);
}

TEST(Pipe, AFailedRankEndsAWaitForAnother) {
  int ended = 0;
  try {
    run_ranks(3, [&](World& world) {
      if (world.rank() == 2) throw MachineError("rank 2 lost its disk");
      try {
        world.all_gather(world.group(), 1);
      } catch (const PeerFailure&) {
        if (world.rank() == 1) ++ended;  // it waits for rank 0, which has not failed
        throw;
      }
    });
    FAIL();
  } catch (const MachineError& error) {
    EXPECT_STREQ(error.what(), "rank 2 lost its disk");
  }
  EXPECT_EQ(ended, 1);
}

}  // namespace
}  // namespace machine::control
