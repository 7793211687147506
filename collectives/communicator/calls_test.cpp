#include "collectives/communicator/calls.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "collectives/communicator/communicator.h"
#include "machine/testing/meeting_link.h"

namespace collectives {
namespace {

using machine::Dtype;
using machine::Operation;
using machine::Transport;

// 4 ranks and a buffer of 4096 floats, with direct. An all-gather sends a share to each of 3 peers.
// An all-reduce sends a share and then its sum.
TEST(CallsCost, TrafficIsThePaperFormulaTimesTheCalls) {
  CallsCost cost;
  const CollectiveCalls gather{"dp", Operation::all_gather, Dtype::float32, 4, 4096, 3};
  const CollectiveCalls reduce{"tp", Operation::all_reduce, Dtype::float32, 4, 4096, 2};
  for (const CollectiveCalls& calls : {gather, reduce})
    cost.add(calls, usual_algorithm(calls, Transport::shared_memory), 1);
  const auto dp = cost.traffic("dp"), tp = cost.traffic("tp");
  EXPECT_EQ(dp.at({Operation::all_gather, Dtype::float32}).bytes_sent, 3u * 3 * 4096);
  EXPECT_EQ(tp.at({Operation::all_reduce, Dtype::float32}).bytes_sent, 2u * 2 * 3 * 4096);
  EXPECT_EQ(cost.traffic().size(), 2u);
  EXPECT_TRUE(cost.traffic("pp").empty());
}

// A communicator keeps a plan's scratch from the first call with a length. Recursive doubling needs
// scratch on every rank.
TEST(CallsCost, ScratchIsKeptOncePerLengthAndGroup) {
  CallsCost once, again, longer, other;
  CollectiveCalls calls{"dp", Operation::all_reduce, Dtype::float32, 4, 1 << 20, 1};
  const auto add = [&](CallsCost& cost) { cost.add(calls, "recursive_doubling", 0); };
  add(once);
  for (int i = 0; i < 2; ++i) add(again);
  add(longer);
  add(other);
  calls.elements /= 2;
  add(longer);
  calls.elements *= 2;
  calls.group = "tp";
  add(other);
  EXPECT_EQ(once.scratch(),
            scratch_bytes(find_algorithm(Operation::all_reduce, "recursive_doubling"), {0, 4},
                          1 << 20, Dtype::float32));
  EXPECT_GT(once.scratch(), 0u);
  EXPECT_EQ(again.scratch(), once.scratch());
  EXPECT_GT(longer.scratch(), once.scratch());
  EXPECT_EQ(other.scratch(), 2 * once.scratch());
}

// The library does not count its bytes.
TEST(CallsCost, TheLibraryHasNoTraffic) {
  CallsCost cost;
  const CollectiveCalls reduce{"tp", Operation::all_reduce, Dtype::float32, 4, 4096, 2};
  const CollectiveCalls gather{"tp", Operation::all_gather, Dtype::float32, 4, 4096, 2};
  GroupAlgorithms algorithms;
  algorithms.set(Operation::all_reduce, library);
  for (const CollectiveCalls& calls : {reduce, gather})
    cost.add(calls, usual_algorithm(calls, Transport::mpi, algorithms), 0);
  EXPECT_EQ(cost.traffic("tp").size(), 1u);
  EXPECT_EQ(cost.traffic("tp").count({Operation::all_gather, Dtype::float32}), 1u);
  EXPECT_EQ(cost.by_library("tp"),
            (std::set<machine::TrafficLabel>{{Operation::all_reduce, Dtype::float32}}));
  EXPECT_TRUE(cost.by_library("dp").empty());
  EXPECT_EQ(cost.scratch() + cost.staging(), 0u);
}

// A communicator over a rendezvous link keeps memory for the parts that it sums, from the first
// call with a length. Gathers sum nothing.
TEST(CallsCost, StagingIsThatOfTheRounds) {
  constexpr int ranks = 3;
  machine::MeetingPoint point;
  machine::run_ranks(ranks, [&](machine::World& world) {
    machine::Device& device = world.host_device();
    Communicator group(world, std::make_unique<machine::MeetingLink>(world.group(), point));
    const std::size_t before = device.ledger().current(machine::Category::links);
    CallsCost cost;
    std::size_t without_gathers = 0;
    for (const std::int64_t elements : {30, 3000, 900'000}) {
      const auto tensor = [&](std::int64_t size) {
        return machine::Tensor(device, Dtype::float32, {size}, machine::Category::buffers);
      };
      const machine::Tensor whole = tensor(elements), share = tensor(elements / ranks);
      device.stream().kernels().fill(whole, 1);
      for (int call = 0; call < 2; ++call) {
        group.all_reduce(whole);
        group.reduce_scatter(whole, share);
      }
      for (const Operation operation : {Operation::all_reduce, Operation::reduce_scatter})
        cost.add({"dp", operation, Dtype::float32, ranks, elements}, group);
      without_gathers = cost.staging();
      group.all_gather(share, whole);
      cost.add({"dp", Operation::all_gather, Dtype::float32, ranks, elements}, group);
      EXPECT_EQ(cost.staging(), without_gathers);
    }
    EXPECT_GT(cost.staging(), 0u);
    EXPECT_EQ(device.ledger().current(machine::Category::links) - before, cost.staging());
    world.barrier(world.group());
  });
}

TEST(CallsCost, OneRankCostsNothing) {
  CallsCost cost;
  cost.add({"tp", Operation::all_reduce, Dtype::float32, 1, 64, 5}, "ring", 0);
  EXPECT_TRUE(cost.traffic().empty());
  EXPECT_EQ(cost.scratch(), 0u);
}

// 4 ranks. The bound of small calls applies to the input, which is a share for an all-gather and
// the whole buffer for the other operations.
TEST(CallsCost, DefaultAlgorithmMatchesTheCommunicator) {
  for (const std::int64_t elements : {64, 256, 260, 1024, 4096})
    for (const Operation operation :
         {Operation::all_reduce, Operation::all_gather, Operation::reduce_scatter}) {
      const CollectiveCalls calls{"tp", operation, Dtype::float32, 4, elements};
      const std::int64_t input = operation == Operation::all_gather ? elements / 4 : elements;
      EXPECT_EQ(
          usual_algorithm(calls, Transport::mpi),
          default_algorithm(operation, Transport::mpi, static_cast<std::size_t>(4 * input), 4));
    }
}

}  // namespace
}  // namespace collectives
