// The nccl link between ranks that are threads, one CUDA device each.

#include "machine/link/nccl.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "machine/base/error.h"
#include "machine/device/kernels.h"
#include "machine/device/tensor.h"
#include "machine/link/connect.h"
#include "machine/world/world.h"
#if SHARDMARK_VIRTUAL_GPU
#include "machine/virtual_gpu/errors.h"
#include "machine/virtual_gpu/nccl/communicator.h"
#endif

namespace machine {
namespace {

constexpr std::int64_t count = 5000;

class NcclLinks : public testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
  void SetUp() override {
    if (cuda::count() < ranks()) GTEST_SKIP() << "fewer than " << ranks() << " CUDA devices";
  }
  // Runs the body on all ranks, whose devices differ.
  void run(const std::function<void(World&)>& body) const {
    run_ranks(
        ranks(),
        [&](World& world) {
          world.use_device(cuda::make_device(world.rank()));
          world.barrier(world.group());
          body(world);
          world.barrier(world.group());
        },
        20);
  }
  static std::unique_ptr<Link> connected(World& world) {
    return connect(world, world.group(), Transport::nccl);
  }
  static Tensor tensor(World& world, std::int64_t elements) {
    return {world.device(), Dtype::float32, {elements}, Category::buffers};
  }
};

double value_of(int round, int from, int to) { return round * 100 + from * 10 + to; }

// Each message is written, sent, received into memory that was just read, and kept in a history.
TEST_P(NcclLinks, EveryMessageArrivesInStreamOrder) {
  constexpr int rounds = 20;
  run([&](World& world) {
    const auto link = connected(world);
    Kernels& kernels = world.device().stream().kernels();
    const int n = ranks();
    const Tensor got = tensor(world, n * count), sent = tensor(world, n * count);
    const Tensor history = tensor(world, rounds * n * count);
    kernels.fill(got, -1);
    for (int round = 0; round < rounds; ++round) {
      std::vector<Transfer> transfers;
      for (int peer = 0; peer < n; ++peer) {
        if (peer == world.rank()) continue;
        const Tensor out = sent.slice(peer * count, {count}), in = got.slice(peer * count, {count});
        kernels.fill(out, value_of(round, world.rank(), peer));
        transfers.push_back({true, peer, out.data(), out.bytes()});
        transfers.push_back({false, peer, in.data(), in.bytes()});
      }
      link->exchange(transfers);
      world.device().stream().copy(history.slice(round * n * count, {n * count}).data(), got.data(),
                                   got.bytes());
    }
    const std::vector<double> values = to_doubles(history);
    for (int round = 0; round < rounds; ++round)
      for (int peer = 0; peer < n; ++peer)
        for (std::int64_t i = 0; i < count; ++i)
          ASSERT_EQ(values[static_cast<std::size_t>((round * n + peer) * count + i)],
                    peer == world.rank() ? -1 : value_of(round, peer, world.rank()))
              << "round " << round << " from " << peer << ", element " << i;
  });
}

// Messages of a ring from and to registered memory, also as a graph. The memory deregisters itself.
TEST_P(NcclLinks, RegisteredMemoryIsReleasedWithTheMemory) {
  for (const Registered how : {Registered::buffer, Registered::window})
    run([&](World& world) {
      const auto link = connected(world);
      Stream& stream = world.device().stream();
      const std::uint64_t before = world.device().ledger().current(Category::buffers);
      {
        const auto registered = [&] {
          return Tensor(link->allocate_registered(count * sizeof(float), Category::buffers, how),
                        Dtype::float32, {count});
        };
        const Tensor out = registered(), in = registered();
        EXPECT_EQ(world.device().ledger().current(Category::buffers) - before,
                  2 * count * sizeof(float));
        const int next = (world.rank() + 1) % ranks(),
                  last = (world.rank() + ranks() - 1) % ranks();
        const Transfer both[] = {{true, next, out.data(), out.bytes()},
                                 {false, last, in.data(), in.bytes()}};
        stream.kernels().fill(out, world.rank());
        link->exchange(both);
        for (const double value : to_doubles(in)) ASSERT_EQ(value, last);
        const auto graph = stream.capture([&] {
          stream.kernels().add(out, in, out);
          link->exchange(both);
        });
        for (int launch = 0; launch < 2; ++launch) graph->launch();
        // A launch sends the sum of a rank's number and of what it has received.
        const int before_last = (last + ranks() - 1) % ranks();
        const int first = last + before_last;
        const int of_before = before_last + (before_last + ranks() - 1) % ranks();
        for (const double value : to_doubles(in)) ASSERT_EQ(value, first + of_before);
        EXPECT_EQ(in.size(), count);
      }
      EXPECT_EQ(world.device().ledger().current(Category::buffers), before);
      world.barrier(world.group());
#if SHARDMARK_VIRTUAL_GPU
      EXPECT_EQ(virtual_gpu::nccl::registrations(), 0u);
#endif
      world.barrier(world.group());
    });
}

// A ring of sends that are issued with the receives, and of messages that are read in place. One
// message in three is empty.
TEST_P(NcclLinks, SendsLeaveWithTheNextReceive) {
  run([&](World& world) {
    const auto link = connected(world);
    Kernels& kernels = world.device().stream().kernels();
    const int next = (world.rank() + 1) % ranks(), last = (world.rank() + ranks() - 1) % ranks();
    const Tensor out = tensor(world, count), in = tensor(world, count);
    const Tensor history = tensor(world, 12 * count);
    kernels.fill(history, -1);
    for (int round = 0; round < 12; ++round) {
      const std::size_t bytes = round % 3 == 0 ? 0 : out.bytes();
      kernels.fill(out, value_of(round, world.rank(), next));
      const auto number = link->send(next, out.data(), bytes);
      const void* got = in.data();
      if (round % 2 == 0)
        link->receive(last, in.data(), bytes);
      else
        got = link->receive_in_place(last, bytes);
      if (bytes > 0)
        world.device().stream().copy(history.slice(round * count, {count}).data(), got, bytes);
      if (round % 2 != 0) link->release(last);
      link->wait_sent(next, number);
    }
    const std::vector<double> values = to_doubles(history);
    for (int round = 0; round < 12; ++round)
      for (std::int64_t i = 0; i < count; ++i)
        ASSERT_EQ(values[static_cast<std::size_t>(round * count + i)],
                  round % 3 == 0 ? -1 : value_of(round, last, world.rank()))
            << "round " << round << ", element " << i;
  });
}

// NCCL passes each call of a non-blocking communicator to a thread.
TEST_P(NcclLinks, CallsQueueTheirWorkAtOnce) {
  run([&](World& world) {
    const auto link = connected(world);
    auto& nccl = dynamic_cast<NcclLink&>(*link);
    const Tensor data = tensor(world, count);
    world.device().stream().kernels().fill(data, 1 + world.rank());
    EXPECT_EQ(ncclAllReduce(data.data(), data.data(), count, ncclFloat32, ncclSum,
                            nccl.communicator(), nccl.queue()),
              ncclSuccess);
    EXPECT_EQ(to_doubles(data)[7], ranks() * (ranks() + 1) / 2);
  });
}

TEST_P(NcclLinks, RejectHostMemory) {
  run([&](World& world) {
    const auto link = connected(world);
    std::vector<float> host(10);
    link->send((world.rank() + 1) % ranks(), host.data(), 40);
    EXPECT_THROW(link->wait_sent((world.rank() + 1) % ranks(), 1), MachineError);
  });
}

#if SHARDMARK_VIRTUAL_GPU

// Adds the rank numbers over a link of its own.
void expect_sum(World& world, Link& link) {
  auto& nccl = dynamic_cast<NcclLink&>(link);
  const Tensor data(world.device(), Dtype::float32, {count}, Category::buffers);
  world.device().stream().kernels().fill(data, 1 + world.rank());
  nccl.call("ncclAllReduce", -1, data.bytes(), [&] {
    return ncclAllReduce(data.data(), data.data(), count, ncclFloat32, ncclSum, nccl.communicator(),
                         nccl.queue());
  });
  EXPECT_EQ(to_doubles(data)[7], link.size() * (link.size() + 1) / 2);
}

TEST_P(NcclLinks, KeepTheirCommunicators) {
  const int before = virtual_gpu::nccl::communicators_made();
  run([&](World& world) {
    for (int round = 0; round < 5; ++round) expect_sum(world, *connected(world));
    world.barrier(world.group());
    EXPECT_EQ(virtual_gpu::nccl::communicators_made() - before, 2 * ranks());
    world.barrier(world.group());
    for (int round = 0; round < 3; ++round) {  // two at a time
      const auto first = connected(world), second = connected(world);
      expect_sum(world, *second);
      expect_sum(world, *first);
    }
    world.barrier(world.group());
    EXPECT_EQ(virtual_gpu::nccl::communicators_made() - before, 3 * ranks());
    world.barrier(world.group());
  });
}

TEST_P(NcclLinks, AreMadeAgainAfterAnError) {
  run([&](World& world) {
    {
      const auto link = connected(world), other = connected(world);
      std::vector<float> host(10);
      if (world.rank() == 0) {
        link->send(1, host.data(), 40);
        EXPECT_THROW(link->wait_sent(1, 1), MachineError);
        EXPECT_THROW(dynamic_cast<NcclLink&>(*link).communicator(), MachineError);
      }
      expect_sum(world, *other);
    }
    const auto link = connected(world), other = connected(world);
    expect_sum(world, *link);
    expect_sum(world, *other);
  });
}

// A rank without memory, and a rank whose device has failed: all ranks throw at once.
TEST_P(NcclLinks, AllRanksFailTogether) {
  const auto refuses = [&](World& world, const char* text) {
    try {
      connected(world);
      ADD_FAILURE() << "rank " << world.rank() << " has a link";
    } catch (const MachineError& error) {
      EXPECT_EQ(error.failure().kind, Failure::Kind::exception) << error.what();
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
    world.barrier(world.group());
  };
  run([&](World& world) {
    {
      std::vector<Memory> all;
      for (const std::size_t bytes : {std::size_t{64} << 20, std::size_t{1} << 16, std::size_t{64}})
        try {
          while (world.rank() == 1)
            all.push_back(world.device().allocate(bytes, Category::buffers));
        } catch (const MachineError&) {
        }
      refuses(world, "rank 1: ");
    }
    expect_sum(world, *connected(world));
    world.barrier(world.group());
  });
  run([&](World& world) {
    if (world.rank() == 1) virtual_gpu::break_device(1, cudaErrorLaunchFailure, "a test");
    refuses(world, "rank 1: cudaSetDevice");
    virtual_gpu::mend_device(world.rank());
  });
}
#endif

INSTANTIATE_TEST_SUITE_P(, NcclLinks, testing::Values(2, 3, 4));

}  // namespace
}  // namespace machine
