#include "suite/layers/experts/dispatch_rate.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace suite {
namespace {

// One rank dispatches for 10 ms, another exchanges messages for 3 ms. Sleeps may last longer.
TEST(DispatchRate, ComparesTheSlowestRanks) {
  machine::run_ranks(2, [](machine::World& world) {
    collectives::Communicator group(world, world.group(), machine::Transport::shared_memory);
    const auto sleep_on = [&](int rank, int milliseconds) {
      if (world.rank() == rank)
        std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    };
    const double rate = dispatch_over_messages(
        world, group, [&] { sleep_on(1, 10); }, [&] { sleep_on(0, 3); });
    EXPECT_GT(rate, 0.1);
    EXPECT_LT(rate, 0.7);
    for (const double theirs : world.all_gather(world.group(), rate)) EXPECT_EQ(theirs, rate);
  });
}

}  // namespace
}  // namespace suite
