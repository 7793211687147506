// Collectives over shared_memory of tensors on a CUDA device.

#include "collectives/communicator/staging.h"

#include <gtest/gtest.h>

#include "collectives/communicator/communicator.h"
#include "machine/testing/pageable_copies.h"

namespace collectives {
namespace {

using machine::Dtype;
using machine::Tensor;
using machine::Transport;
using machine::World;

class StagingOfCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (machine::cuda::count() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

// Calls follow each other without a wait, in growing and shrinking sizes.
TEST_F(StagingOfCuda, EveryCallGetsItsOwnResult) {
  constexpr int ranks = 2;
  machine::run_ranks(ranks, [](World& world) {
    world.use_device(machine::cuda::make_device(0));
    machine::Kernels& kernels = world.device().stream().kernels();
    Communicator group(world, world.group(), Transport::shared_memory);
    const auto tensor = [&](std::int64_t elements) {
      return Tensor(world.device(), Dtype::float32, {elements}, machine::Category::buffers);
    };
    std::vector<Tensor> sums, all;
    world.barrier(world.group());
    const std::uint64_t before = machine::pageable_copies().value_or(0);
    world.barrier(world.group());
    for (int call = 0; call < 6; ++call) {
      const std::int64_t count = call % 3 == 2 ? 0 : 1000 * (1 + call % 4);
      sums.push_back(tensor(count));
      kernels.fill(sums.back(), call + world.rank());
      group.all_reduce(sums.back());
      all.push_back(tensor(ranks * count));
      group.all_gather(sums.back(), all.back());
    }
    world.barrier(world.group());
    EXPECT_EQ(machine::pageable_copies().value_or(0), before);
    world.barrier(world.group());
    for (int call = 0; call < 6; ++call)
      for (const Tensor& result :
           {sums[static_cast<std::size_t>(call)], all[static_cast<std::size_t>(call)]})
        for (const double value : to_doubles(result)) ASSERT_EQ(value, 2 * call + 1) << call;
  });
}

// A rank that only receives queues nothing before the bytes arrive, so nothing waits for the copy
// of the call before.
TEST_F(StagingOfCuda, ReceivedBytesDoNotOverwriteThoseOfAQueuedCopy) {
  machine::run_ranks(2, [](World& world) {
    world.use_device(machine::cuda::make_device(0));
    Communicator group(world, world.group(), Transport::shared_memory);
    std::vector<Tensor> received;
    for (int call = 0; call < 6; ++call) {
      const std::int64_t count = 1000 * (1 + call / 2);
      const auto tensor = [&] {
        return Tensor(world.device(), Dtype::float32, {count}, machine::Category::buffers);
      };
      const Tensor sent = tensor();
      received.push_back(tensor());
      if (world.rank() == 0) world.device().stream().kernels().fill(sent, call);
      group.run(machine::Operation::broadcast, {}, sent, received.back());
    }
    for (int call = 0; call < 6; ++call)
      for (const double value : to_doubles(received[static_cast<std::size_t>(call)]))
        ASSERT_EQ(value, call) << "rank " << world.rank();
  });
}

}  // namespace
}  // namespace collectives
