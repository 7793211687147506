// Calls in the link's own stream, in parallel with the device's, between ranks that are threads.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <stdexcept>

#include "collectives/communicator/communicator.h"
#include "collectives/communicator/library.h"
#include "machine/base/error.h"

namespace collectives {
namespace {

using machine::Category;
using machine::Dtype;
using machine::Tensor;
using machine::Transport;
using machine::World;

struct OnDevices {
  Transport transport;
  int ranks, devices;
};

class OwnStream : public testing::TestWithParam<OnDevices> {
 protected:
  void SetUp() override {
    if (machine::cuda::count() < GetParam().devices)
      GTEST_SKIP() << "fewer than " << GetParam().devices << " CUDA devices";
  }
  static void run(const std::function<void(World&)>& body) {
    machine::run_ranks(
        GetParam().ranks,
        [&](World& world) {
          world.use_device(machine::cuda::make_device(world.rank() % GetParam().devices));
          world.barrier(world.group());
          body(world);
          world.barrier(world.group());
        },
        20);
  }
  static Communicator connected(World& world) {
    return {world, world.group(), GetParam().transport, machine::LinkStream::own};
  }
  static Tensor tensor(World& world, std::int64_t elements) {
    return {world.device(), Dtype::float32, {elements}, Category::buffers};
  }
};

constexpr std::int64_t count = 3000;
constexpr int rounds = 8;

// Only the device's stream writes and reads the buffers. It writes each again without a wait of the
// host.
TEST_P(OwnStream, CallsAreOrderedWithTheDevice) {
  run([](World& world) {
    Communicator group = connected(world);
    machine::Stream& stream = world.device().stream();
    ASSERT_NE(&group.stream(), &stream);
    const int n = world.size();
    const Tensor data = tensor(world, count), history = tensor(world, rounds * count);
    for (int round = 0; round < rounds; ++round) {
      stream.kernels().fill(data, round + world.rank());
      group.all_reduce(data);
      stream.copy(history.slice(round * count, {count}).data(), data.data(), data.bytes());
    }
    const std::vector<double> got = to_doubles(history);
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(got[i], n * (static_cast<int>(i) / count) + n * (n - 1) / 2) << i;
  });
}

// run_apart starts after the device's work, also with work besides the calls. Only the wait for its
// end orders later work.
TEST_P(OwnStream, WorkApartStartsAfterTheDevicesWork) {
  run([](World& world) {
    Communicator group = connected(world);
    machine::Stream& stream = world.device().stream();
    const int n = world.size();
    const Tensor data = tensor(world, count), sum = tensor(world, count),
                 history = tensor(world, rounds * count);
    for (int round = 0; round < rounds; ++round) {
      stream.kernels().fill(data, round + world.rank());
      const auto end = group.run_apart([&] {
        group.stream().copy(sum.data(), data.data(), data.bytes());
        group.all_reduce(sum);
      });
      stream.wait(*end);
      stream.copy(history.slice(round * count, {count}).data(), sum.data(), sum.bytes());
    }
    const std::vector<double> got = to_doubles(history);
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(got[i], n * (static_cast<int>(i) / count) + n * (n - 1) / 2) << i;
  });
}

// Rank 0 waits for its device before the other ranks call.
TEST_P(OwnStream, WorkApartDoesNotHoldTheDevice) {
  if (GetParam().transport != Transport::nccl)
    GTEST_SKIP() << "the host takes part in each message of cuda_ipc";
  for (const std::string_view algorithm : {library, std::string_view("direct")})
    run([algorithm](World& world) {
      Communicator group = connected(world);
      machine::Stream& stream = world.device().stream();
      const Tensor data = tensor(world, count), other = tensor(world, count);
      group.all_reduce(data, data, algorithm);  // the first calls may wait for peers
      stream.synchronize();
      stream.kernels().fill(data, 1);
      if (world.rank() > 0) world.barrier(world.group());
      const auto end = group.run_apart([&] { group.all_reduce(data, data, algorithm); });
      stream.kernels().fill(other, 2);
      if (world.rank() == 0) {
        stream.synchronize();
        world.barrier(world.group());
      }
      stream.wait(*end);
      EXPECT_EQ(to_doubles(data).front(), world.size()) << algorithm;
      EXPECT_EQ(to_doubles(other).front(), 2) << algorithm;
    });
}

INSTANTIATE_TEST_SUITE_P(, OwnStream,
                         testing::Values(OnDevices{Transport::cuda_ipc, 2, 1},
                                         OnDevices{Transport::cuda_ipc, 3, 2},
                                         OnDevices{Transport::nccl, 3, 3}),
                         [](const auto& info) {
                           return fmt::format("{}_on_{}", name(info.param.transport),
                                              info.param.devices);
                         });

TEST(OwnStreamOfAHost, DoesNotExist) {
  machine::run_ranks(2, [](World& world) {
    Communicator group(world, world.group(), Transport::shared_memory, machine::LinkStream::own);
    EXPECT_FALSE(group.link().has_own_stream());
    EXPECT_THROW(group.run_apart([] {}), std::logic_error);
  });
}

}  // namespace
}  // namespace collectives
