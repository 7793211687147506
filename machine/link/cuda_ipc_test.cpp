// The cuda_ipc link between ranks that are threads, on one device and on two.

#include <gtest/gtest.h>

#include <vector>

#include "machine/base/error.h"
#include "machine/device/kernels.h"
#include "machine/device/tensor.h"
#include "machine/link/connect.h"
#include "machine/world/world.h"

namespace machine {
namespace {

constexpr std::int64_t count = 5000;

class CudaIpcLink : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (cuda::count() < GetParam()) GTEST_SKIP() << "fewer than " << GetParam() << " CUDA devices";
  }
  // Runs the body with a link between all ranks, whose devices are taken in turn.
  void run(int ranks, const std::function<void(World&, Link&)>& body) const {
    run_ranks(ranks, [&](World& world) {
      world.use_device(cuda::make_device(world.rank() % GetParam()));
      world.barrier(world.group());
      {
        const auto link = connect(world, world.group(), Transport::cuda_ipc);
        body(world, *link);
        link->flush();
        world.device().stream().synchronize();
      }
      world.barrier(world.group());
    });
  }
  static Tensor tensor(World& world, std::int64_t elements) {
    return {world.device(), Dtype::float32, {elements}, Category::buffers};
  }
};

double value_of(int round, int from, int to) { return round * 100 + from * 10 + to; }

// Each message is written, sent, received into memory that was just read, and kept in a history.
TEST_P(CudaIpcLink, EveryMessageArrivesInStreamOrder) {
  constexpr int rounds = 25;
  for (const int ranks : {2, 3})
    run(ranks, [&](World& world, Link& link) {
      Kernels& kernels = world.device().stream().kernels();
      const Tensor got = tensor(world, count), history = tensor(world, rounds * ranks * count);
      kernels.fill(history, -1);
      std::vector<Tensor> sent;
      for (int peer = 0; peer < ranks; ++peer) sent.push_back(tensor(world, count));
      for (int round = 0; round < rounds; ++round) {
        for (int peer = 0; peer < ranks; ++peer) {
          if (peer == world.rank()) continue;
          link.wait_sent(peer, ~std::uint64_t{0});
          kernels.fill(sent[peer], value_of(round, world.rank(), peer));
          link.send(peer, sent[peer].data(), sent[peer].bytes());
        }
        for (int peer = 0; peer < ranks; ++peer) {
          if (peer == world.rank()) continue;
          link.receive(peer, got.data(), got.bytes());
          world.device().stream().copy(
              history.slice((round * ranks + peer) * count, {count}).data(), got.data(),
              got.bytes());
        }
      }
      const std::vector<double> values = to_doubles(history);
      for (int round = 0; round < rounds; ++round)
        for (int peer = 0; peer < ranks; ++peer)
          for (std::int64_t i = 0; i < count; ++i)
            ASSERT_EQ(values[static_cast<std::size_t>((round * ranks + peer) * count + i)],
                      peer == world.rank() ? -1 : value_of(round, peer, world.rank()))
                << "round " << round << " from " << peer << ", element " << i;
    });
}

// The sender writes into the place that the receiver has offered.
TEST_P(CudaIpcLink, MessagesAreDeliveredInPlace) {
  constexpr int rounds = 10;
  run(2, [&](World& world, Link& link) {
    Kernels& kernels = world.device().stream().kernels();
    const int peer = 1 - world.rank();
    const Tensor place = tensor(world, count), mine = tensor(world, count);
    const Tensor history = tensor(world, rounds * count);
    for (int round = 0; round < rounds; ++round) {
      link.post(peer, 1, place.data(), place.bytes());
      world.barrier(world.group());  // both have posted
      kernels.fill(mine, value_of(round, world.rank(), peer));
      void* to = link.posted(peer, mine.bytes());
      ASSERT_NE(to, nullptr);
      world.device().stream().copy(to, mine.data(), mine.bytes());
      link.deliver(peer, mine.bytes());
      link.receive(peer, place.data(), place.bytes());
      world.device().stream().copy(history.slice(round * count, {count}).data(), place.data(),
                                   place.bytes());
    }
    const std::vector<double> values = to_doubles(history);
    for (int round = 0; round < rounds; ++round)
      for (std::int64_t i = 0; i < count; ++i)
        ASSERT_EQ(values[static_cast<std::size_t>(round * count + i)],
                  value_of(round, peer, world.rank()));
  });
}

TEST_P(CudaIpcLink, HostMemoryIsRejected) {
  run(2, [](World& world, Link& link) {
    std::vector<float> host(10);
    EXPECT_THROW(link.send(1 - world.rank(), host.data(), 40), std::logic_error);
  });
}

// Rank 0 fills its device with arenas, which its peer may map, and then needs a larger one.
TEST_P(CudaIpcLink, ArenasAreReleasedAfterTheLink) {
  constexpr std::size_t block = std::size_t{1} << 30;
  run_ranks(2, [&](World& world) {
    world.use_device(cuda::make_device(world.rank() % GetParam()));
    const auto allocate = [&](std::size_t bytes) {
      return world.device().allocate(bytes, Category::buffers);
    };
    const Tensor small = tensor(world, count);
    std::size_t blocks = 0;
    world.barrier(world.group());
    {
      const auto link = connect(world, world.group(), Transport::cuda_ipc);
      if (world.rank() == 0) {
        std::vector<Memory> all;
        EXPECT_THROW(for (;;) all.push_back(allocate(block)), MachineError);
        blocks = all.size();
        ASSERT_GE(blocks, 2u);
        link->send(1, all.back().data(), small.bytes());
        link->wait_sent(1, ~std::uint64_t{0});
        link->flush();
        world.device().stream().synchronize();
        all.clear();
        EXPECT_THROW(allocate(blocks * block), MachineError);
      } else {
        link->receive(0, small.data(), small.bytes());
        world.device().stream().synchronize();
      }
    }
    world.barrier(world.group());
    if (world.rank() == 0) EXPECT_EQ(allocate(blocks * block).bytes(), blocks * block);
    world.barrier(world.group());
  });
}

INSTANTIATE_TEST_SUITE_P(, CudaIpcLink, testing::Values(1, 2), [](const auto& info) {
  return info.param == 1 ? "one_device" : "two_devices";
});

}  // namespace
}  // namespace machine
