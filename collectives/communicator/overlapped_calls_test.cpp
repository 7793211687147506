// Collectives that overlap the caller's work: the same bits and bytes as a call without it, shares
// in the order of the plan, and failures of either side.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "machine/base/clock.h"
#include "machine/base/error.h"
#include "machine/link/connect.h"
#include "machine/link/faulty_link.h"

namespace collectives {
namespace {

using machine::Category;
using machine::Dtype;
using machine::Operation;
using machine::Tensor;
using machine::Transport;
using machine::World;

struct Place {
  Transport transport;
  int ranks, devices;  // devices 0: the host
};

class OverlappedCalls : public testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    if (machine::cuda::count() < GetParam().devices)
      GTEST_SKIP() << "fewer than " << GetParam().devices << " CUDA devices";
  }
  static void run(const std::function<void(World&)>& body) {
    machine::run_ranks(
        GetParam().ranks,
        [&](World& world) {
          if (GetParam().devices > 0)
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

constexpr std::string_view gathers[] = {"", "ring", "direct", "recursive_doubling", "bruck"};
constexpr std::string_view scatters[] = {"", "ring", "direct", "pairwise", "bidirectional_ring"};
constexpr std::int64_t counts[] = {1, 1009, 100'003};  // of a share; the last has several pieces

bool supports(Operation operation, std::string_view algorithm, int ranks) {
  return algorithm.empty() || find_algorithm(operation, algorithm).refuses({0, ranks}).empty();
}

// The work reads a share, and writes a copy of it, in the order in which it is offered.
TEST_P(OverlappedCalls, GathersTheSharesForTheWork) {
  run([](World& world) {
    for (const std::string_view algorithm : gathers) {
      if (!supports(Operation::all_gather, algorithm, world.size())) continue;
      Communicator group = connected(world);
      GroupAlgorithms names;
      names.set(Operation::all_gather, algorithm);
      group.set_algorithms(names);
      machine::Stream& stream = world.device().stream();
      for (const std::int64_t count : counts) {
        const Tensor in = tensor(world, count), out = tensor(world, count * world.size()),
                     copies = tensor(world, count * world.size());
        for (int round = 0; round < 3; ++round) {
          stream.kernels().fill(in, 10 * round + world.rank());
          stream.kernels().fill(out, -1);
          group.link().reset_traffic();
          std::multiset<int> used;
          group.all_gather_while(in, out, [&](int share) {
            used.insert(share);
            stream.copy(copies.slice(share * count, {count}).data(),
                        out.slice(share * count, {count}).data(), in.bytes());
          });
          const auto traffic = group.link().traffic();
          EXPECT_EQ(used.size(), static_cast<std::size_t>(world.size()));
          EXPECT_EQ(std::set<int>(used.begin(), used.end()).size(), used.size());
          const std::vector<double> got = to_doubles(copies);
          for (std::size_t i = 0; i < got.size(); ++i)
            ASSERT_EQ(got[i], 10 * round + static_cast<int>(i) / static_cast<int>(count))
                << algorithm << " " << i;
          group.link().reset_traffic();
          group.all_gather(in, out);
          EXPECT_EQ(group.link().traffic(), traffic) << algorithm;
          EXPECT_EQ(to_doubles(out), got);
        }
      }
    }
  });
}

// Every share is written only by the work.
TEST_P(OverlappedCalls, ScattersTheSharesOfTheWork) {
  run([](World& world) {
    machine::Stream& stream = world.device().stream();
    for (const std::int64_t count : counts) {
      const Tensor in = tensor(world, count * world.size()), out = tensor(world, count),
                   source = tensor(world, count * world.size());
      stream.kernels().fill_normal(source, static_cast<std::uint64_t>(7 + world.rank()), {}, 0, 1);
      for (const std::string_view algorithm : scatters) {
        if (!supports(Operation::reduce_scatter, algorithm, world.size())) continue;
        Communicator group = connected(world);
        GroupAlgorithms names;
        names.set(Operation::reduce_scatter, algorithm);
        group.set_algorithms(names);
        for (int round = 0; round < 3; ++round) {
          for (const Tensor& values : {in, out})
            stream.kernels().fill(values, std::numeric_limits<double>::quiet_NaN());
          group.link().reset_traffic();
          group.reduce_scatter_while(in, out, [&](int share) {
            stream.copy(in.slice(share * count, {count}).data(),
                        source.slice(share * count, {count}).data(), out.bytes());
          });
          const auto traffic = group.link().traffic();
          const std::vector<double> got = to_doubles(out);
          group.link().reset_traffic();
          group.reduce_scatter(source, out);
          EXPECT_EQ(group.link().traffic(), traffic) << algorithm;
          EXPECT_EQ(to_doubles(out), got) << algorithm;
        }
      }
    }
  });
}

TEST_P(OverlappedCalls, RunsBesideIndependentWork) {
  run([](World& world) {
    Communicator group = connected(world);
    machine::Stream& stream = world.device().stream();
    const std::int64_t count = 3001;
    const int n = world.size();
    const Tensor data = tensor(world, count), sum = tensor(world, count),
                 other = tensor(world, count);
    for (int round = 0; round < 5; ++round) {
      stream.kernels().fill(data, round + world.rank());
      group.run_beside(Operation::all_reduce, data, sum,
                       [&] { stream.kernels().fill(other, round); });
      stream.kernels().fill(data, -1);  // after the peers have read it
      EXPECT_EQ(to_doubles(sum).back(), n * round + n * (n - 1) / 2);
      EXPECT_EQ(to_doubles(other).back(), round);
    }
  });
}

// A peer that has not called yet holds neither the own share nor independent work.
TEST_P(OverlappedCalls, WorkDoesNotWaitForPeers) {
  if (GetParam().transport == Transport::cuda_ipc)
    GTEST_SKIP() << "the host takes part in each message of cuda_ipc";
  if (GetParam().transport == Transport::shared_memory && GetParam().devices > 0)
    GTEST_SKIP() << "staged tensors have no shares";
  run([](World& world) {
    Communicator group = connected(world);
    group.set_algorithms(algorithms_by_share());
    const Tensor in = tensor(world, 1000), out = tensor(world, 1000 * world.size());
    world.device().stream().kernels().fill(in, world.rank());
    // The first calls may wait for peers.
    group.all_gather_while(in, out, [](int) {});
    group.run_beside(Operation::all_gather, in, out, [] {});
    world.device().stream().synchronize();
    const bool first = world.rank() == 0;
    if (!first) world.barrier(world.group());
    bool met = false;
    group.all_gather_while(in, out, [&](int share) {
      if (!first || share != 0) return;
      world.device().stream().synchronize();
      world.barrier(world.group());
      met = true;
    });
    EXPECT_EQ(met, first);
    if (!first) world.barrier(world.group());
    group.run_beside(Operation::all_gather, in, out, [&] {
      if (first) world.barrier(world.group());
    });
    EXPECT_EQ(to_doubles(out).back(), world.size() - 1);
  });
}

INSTANTIATE_TEST_SUITE_P(
    , OverlappedCalls,
    testing::Values(Place{Transport::shared_memory, 1, 0}, Place{Transport::shared_memory, 2, 0},
                    Place{Transport::shared_memory, 3, 0}, Place{Transport::shared_memory, 4, 0},
                    Place{Transport::shared_memory, 2, 1}, Place{Transport::cuda_ipc, 2, 1},
                    Place{Transport::cuda_ipc, 4, 2}, Place{Transport::nccl, 3, 3},
                    Place{Transport::nccl, 4, 4}),
    [](const auto& info) {
      return fmt::format("{}_{}_on_{}", name(info.param.transport), info.param.ranks,
                         info.param.devices);
    });

// A share takes 200 ms on the wire, and each rank works 200 ms on each of its two shares. One share
// is on the wire during the work on the other.
TEST(OverlappedCallsOverASlowLink, HideTheTransfers) {
  machine::run_ranks(2, [](World& world) {
    constexpr double share_s = 0.2;
    machine::Faults faults;
    faults.slow_links.push_back({0, 1, 4000 / share_s});
    Communicator group(
        world, machine::with_faults(
                   machine::connect(world, world.group(), Transport::shared_memory), faults));
    group.set_algorithms(algorithms_by_share());
    const auto tensor = [&](std::int64_t elements) {
      return Tensor(world.device(), Dtype::float32, {elements}, Category::buffers);
    };
    const Tensor share = tensor(1000), whole = tensor(2000);
    world.device().stream().kernels().fill(share, 1);
    world.device().stream().kernels().fill(whole, 1);
    const auto work = [&](int) {
      std::this_thread::sleep_for(std::chrono::duration<double>(share_s));
    };
    const auto seconds = [&](const auto& call) {
      world.barrier(world.group());
      const double begin = machine::steady_s();
      call();
      return machine::steady_s() - begin;
    };
    const double serial = seconds([&] {
      group.all_gather(share, whole);
      work(0);
      work(1);
    });
    EXPECT_GE(serial, 3 * share_s);
    for (const double overlapped :
         {seconds([&] { group.all_gather_while(share, whole, work); }),
          seconds([&] { group.reduce_scatter_while(whole, share, work); }), seconds([&] {
            group.run_beside(Operation::all_gather, share, whole, [&] {
              work(0);
              work(1);
            });
          })}) {
      EXPECT_GE(overlapped, 2 * share_s);
      EXPECT_LE(overlapped, 2.6 * share_s);
    }
  });
}

TEST(OverlappedCallsThatFail, RethrowTheWorksFailure) {
  machine::run_ranks(2, [](World& world) {
    for (const int which : {0, 1, 2}) {
      Communicator group(world, world.group(), Transport::shared_memory);
      const Tensor share(world.device(), Dtype::float32, {10}, Category::buffers),
          whole(world.device(), Dtype::float32, {20}, Category::buffers);
      const auto fail = [](int) { throw std::domain_error("work"); };
      EXPECT_THROW(
          {
            if (which == 0) group.all_gather_while(share, whole, fail);
            if (which == 1) group.reduce_scatter_while(whole, share, fail);
            if (which == 2) group.run_beside(Operation::all_gather, share, whole, [&] { fail(0); });
          },
          std::domain_error);
    }
  });
}

TEST(OverlappedCallsThatFail, RethrowThePlansTimeout) {
  machine::run_ranks(
      2,
      [](World& world) {
        Communicator group(world, world.group(), Transport::shared_memory);
        const Tensor share(world.device(), Dtype::float32, {10}, Category::buffers),
            whole(world.device(), Dtype::float32, {20}, Category::buffers);
        if (world.rank() == 0) {
          EXPECT_THROW(group.all_gather_while(share, whole, [](int) {}), machine::Timeout);
        }
        world.barrier(world.group());
      },
      0.5);
}

}  // namespace
}  // namespace collectives
