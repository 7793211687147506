#include "machine/world/world.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "machine/device/error.h"
#include "machine/world/binding.h"

namespace machine {
namespace {

TEST(World, GathersInGroupOrder) {
  for (const int ranks : {1, 2, 3, 8})
    run_ranks(ranks, [&](World& world) {
      for (int round = 0; round < 3; ++round) {
        const std::string mine =
            std::string(static_cast<std::size_t>(world.rank() * 5000), 'x') + std::to_string(round);
        const auto all = world.all_gather(world.group(), mine);
        for (int rank = 0; rank < ranks; ++rank)
          ASSERT_EQ(
              all[static_cast<std::size_t>(rank)],
              std::string(static_cast<std::size_t>(rank * 5000), 'x') + std::to_string(round));
        EXPECT_EQ(world.broadcast(world.group(), ranks - 1, mine), all.back());
      }
    });
}

TEST(World, BarrierHoldsEverybody) {
  std::atomic<int> arrived{0};
  run_ranks(4, [&](World& world) {
    for (int round = 1; round <= 50; ++round) {
      ++arrived;
      world.barrier(world.group());
      EXPECT_GE(arrived.load(), 4 * round);
      world.barrier(world.group());
    }
  });
}

TEST(World, AFailedRankEndsTheOthersWaits) {
  try {
    run_ranks(3, [](World& world) {
      if (world.rank() == 1) throw MachineError("rank 1 lost its disk");
      world.barrier(world.group());
    });
    FAIL();
  } catch (const PeerFailure&) {
    FAIL() << "the cause, not the consequence, must be reported";
  } catch (const MachineError& error) {
    EXPECT_STREQ(error.what(), "rank 1 lost its disk");
  }
}

TEST(World, AWaitThatDoesNotEndNamesBothRanks) {
  try {
    run_ranks(
        2,
        [](World& world) {
          const auto link = world.connect(world.group(), Transport::shared_memory);
          world.board().set_activity("the test");
          char byte = 0;
          link->count_as({Operation::all_reduce, Dtype::float32});
          if (world.rank() == 0) link->receive(1, &byte, 1);
          world.barrier(world.group());
        },
        0.3);
    FAIL();
  } catch (const Timeout& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("rank 0 waited"), std::string::npos) << text;
    EXPECT_NE(text.find("in all_reduce for rank 1 to send message 1 (1 bytes), during the test"),
              std::string::npos)
        << text;
  }
}

TEST(World, ThreadsHaveNoMpi) {
  run_ranks(1, [](World& world) {
    EXPECT_THROW(world.connect(world.group(), Transport::mpi), MachineError);
  });
}

TEST(Binding, RanksShareNoCoreWhileThereAreEnough) {
  const std::vector<int> cores{0, 1, 2, 3, 8, 9, 10};
  for (int ranks = 1; ranks <= 7; ++ranks) {
    std::vector<int> seen;
    for (int rank = 0; rank < ranks; ++rank)
      for (const int core : cores_of(rank, ranks, cores)) seen.push_back(core);
    EXPECT_EQ(seen, cores) << ranks << " ranks use every core once, in order";
  }
  EXPECT_EQ(cores_of(9, 16, cores), (std::vector<int>{2}));
  EXPECT_EQ(text(cores), "0-3,8-10");
}

}  // namespace
}  // namespace machine
