// The borders of a tensor-parallel region on a device with a stream.

#include "layers/region.h"

#include <gtest/gtest.h>

#include <vector>

#include "machine/testing/queued_device.h"

namespace layers {
namespace {

// The number of queued operations does not depend on the number of rows.
TEST(Region, GatheringColumnsCopiesTheRowsOfARankAtOnce) {
  constexpr int ranks = 3;
  constexpr std::int64_t cols = 5;
  machine::MarkedStreams marks;
  std::vector<machine::QueuedDevice> devices(ranks);
  machine::run_ranks(ranks, [&](machine::World& world) {
    machine::QueuedDevice& device = devices[static_cast<std::size_t>(world.rank())];
    collectives::Communicator tp(world, machine::queued_link(world, device, marks));
    const Context context{device, tp};
    std::vector<std::size_t> queued;
    for (const std::int64_t rows : {2, 2, 64}) {
      const Tensor part = context.tensor({rows, cols}, Category::buffers),
                   whole = context.tensor({rows, ranks * cols}, Category::buffers);
      std::vector<double> mine, all;
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t col = 0; col < ranks * cols; ++col) {
          all.push_back(static_cast<double>(row * 100 + col));
          if (col / cols == world.rank()) mine.push_back(all.back());
        }
      machine::from_doubles(part, mine);
      const std::size_t before = device.worker().pushed();
      gather_columns(context, part, whole);
      queued.push_back(device.worker().pushed() - before);
      EXPECT_EQ(machine::to_doubles(whole), all);
      world.barrier(world.group());
    }
    EXPECT_EQ(queued[1], queued[2]);
  });
}

}  // namespace
}  // namespace layers
