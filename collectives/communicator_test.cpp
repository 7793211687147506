#include "collectives/communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "collectives/choose.h"
#include "collectives/cost.h"

namespace collectives {
namespace {

using machine::Category;
using machine::Dtype;
using machine::Operation;
using machine::Reduction;
using machine::Tensor;
using machine::Transport;
using machine::World;

// Small integers: every partial sum is exact in every dtype, so results are compared bit for bit.
double value(int rank, std::int64_t index) {
  const auto mixed =
      static_cast<std::uint64_t>(index * 131 + rank * 7919 + 1) * 0x9e3779b97f4a7c15u;
  return static_cast<double>((mixed >> 40) % 17) - 8;
}

std::vector<double> values(int rank, std::int64_t count) {
  std::vector<double> result;
  for (std::int64_t i = 0; i < count; ++i) result.push_back(value(rank, i));
  return result;
}

Tensor tensor(World& world, Dtype dtype, std::int64_t count) {
  return Tensor(world.host_device(), dtype, {count}, Category::buffers);
}

// Sanitizers slow the code down tenfold, and the thread sanitizer maps shadow memory anew for every
// large buffer: there, the large count is a smaller one.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
const std::int64_t counts[] = {0, 1, 7, 1009, 20'011};
#else
const std::int64_t counts[] = {0, 1, 7, 64, 1009, 150'001};
#endif

// What rank's output must hold; share i of an operation that deals in shares has `count` elements.
std::vector<double> expected_output(Operation operation, int rank, int ranks, int root,
                                    std::int64_t count) {
  std::vector<double> result;
  const auto sums = [&](std::int64_t from) {
    for (std::int64_t i = from; i < from + count; ++i) {
      result.push_back(0);
      for (int peer = 0; peer < ranks; ++peer) result.back() += value(peer, i);
    }
  };
  const auto part = [&](int whose, std::int64_t from) {
    for (std::int64_t i = from; i < from + count; ++i) result.push_back(value(whose, i));
  };
  switch (operation) {
    case Operation::all_gather:
    case Operation::gather:
      for (int peer = 0; peer < ranks; ++peer) part(peer, 0);
      break;
    case Operation::all_to_all:
      for (int peer = 0; peer < ranks; ++peer) part(peer, rank * count);
      break;
    case Operation::reduce_scatter:
      sums(rank * count);
      break;
    case Operation::scatter:
      part(root, rank * count);
      break;
    case Operation::broadcast:
      part(root, 0);
      break;
    case Operation::send_receive:
      part((rank + ranks - 1) % ranks, 0);
      break;
    default:
      sums(0);
      break;
  }
  return result;
}

void check(World& world, Communicator& group, const Algorithm& algorithm, Dtype dtype,
           std::int64_t count, bool in_place, int root) {
  const int ranks = group.size(), rank = group.rank();
  const Call call{rank, ranks, 1, root, group.inner()};
  const Extents held = extents(algorithm.operation, call);
  const std::int64_t whole = deals_in_shares(algorithm.operation) ? count * ranks : count;
  const auto buffer = [&](Extent extent) {
    return extent == Extent::none ? Tensor()
                                  : tensor(world, dtype, extent == Extent::whole ? whole : count);
  };
  Tensor in = buffer(held.input), out = buffer(held.output);
  if (in_place && in && out) {
    if (held.input == held.output) out = in;
    if (held.input == Extent::own_share) in = out.slice(rank * count, {count});
    if (held.output == Extent::own_share) out = in.slice(rank * count, {count});
  }
  if (in) machine::from_doubles(in, values(rank, in.size()));
  group.link().reset_traffic();
  group.run(algorithm.operation, algorithm.name, in, out, Reduction::sum, root);
  const std::string what = std::string(name(algorithm.operation)) + " " +
                           std::string(algorithm.name) + " " + std::string(machine::name(dtype)) +
                           " x " + std::to_string(count) + " among " + std::to_string(ranks) +
                           ", root " + std::to_string(root) + (in_place ? ", in place" : "");
  if (out) {
    ASSERT_EQ(machine::to_doubles(out),
              expected_output(algorithm.operation, rank, ranks, root, count))
        << what;
  }
  EXPECT_EQ(group.link().total(), expected_traffic(algorithm, call, count, dtype)) << what;
}

TEST(Communicator, EveryAlgorithmIsExactOnIntegersAndSendsWhatItsFormulaSays) {
  for (const int ranks : {1, 2, 3, 4, 7, 8})
    machine::run_ranks(ranks, [](World& world) {
      Communicator group(world, world.group(), Transport::shared_memory);
      for (const Algorithm& algorithm : algorithms())
        for (const Dtype dtype : machine::floating_dtypes)
          for (const std::int64_t count : counts)
            for (const bool in_place : {false, true}) {
              if (algorithm.operation == Operation::barrier) continue;
              if (in_place && !may_be_in_place(algorithm.operation)) continue;
              if (count > 2000 && dtype != Dtype::float32) continue;
              if (!algorithm.refuses({0, world.size()}).empty()) continue;
              check(world, group, algorithm, dtype, count, in_place,
                    static_cast<int>(count % world.size()));
              if (testing::Test::HasFatalFailure()) return;
            }
    });
}

// Real numbers: all ranks hold the same bits, whatever the order of the sum.
TEST(Communicator, AllRanksHoldTheSameBits) {
  for (const int ranks : {3, 4, 7})
    machine::run_ranks(ranks, [](World& world) {
      Communicator group(world, world.group(), Transport::shared_memory);
      for (const std::string_view algorithm : {"ring", "direct", "direct_one_step"}) {
        Tensor data = tensor(world, Dtype::float32, 5003);
        world.host_device().stream().kernels().fill_normal(
            data, static_cast<std::uint64_t>(world.rank()), {0, 0, 5003}, 0, 1);
        group.all_reduce(data, data, algorithm);
        const auto hashes = world.all_gather(world.group(), std::to_string(machine::hash(data)));
        for (const std::string& hash : hashes) EXPECT_EQ(hash, hashes.front()) << algorithm;
      }
    });
}

// Each addition rounds once: |error| <= gamma_{N-1} * sum |x_i| (Higham 2002, section 4.2).
TEST(Communicator, SumsRoundOnceAnAddition) {
  constexpr int ranks = 4;
  machine::run_ranks(ranks, [](World& world) {
    Communicator group(world, world.group(), Transport::shared_memory);
    for (const Dtype dtype : machine::floating_dtypes)
      for (const std::string_view algorithm : {"ring", "direct", "direct_one_step"}) {
        constexpr std::int64_t count = 2011;
        std::vector<double> sum(count), magnitude(count);
        Tensor mine = tensor(world, dtype, count);
        for (int rank = ranks - 1; rank >= 0; --rank) {
          Tensor theirs = tensor(world, dtype, count);
          world.host_device().stream().kernels().fill_normal(
              theirs, static_cast<std::uint64_t>(rank), {0, 0, count}, 0, 1);
          const std::vector<double> exact = machine::to_doubles(theirs);
          for (std::size_t i = 0; i < exact.size(); ++i) {
            sum[i] += exact[i];
            magnitude[i] += std::abs(exact[i]);
          }
          if (rank == world.rank()) mine = theirs;
        }
        group.all_reduce(mine, mine, algorithm);
        const std::vector<double> got = machine::to_doubles(mine);
        const double u = unit_roundoff(dtype), gamma = (ranks - 1) * u / (1 - (ranks - 1) * u);
        const double reference = ranks * 0x1p-53;  // the double sum above rounds too
        for (std::size_t i = 0; i < got.size(); ++i)
          ASSERT_LE(std::abs(got[i] - sum[i]), (gamma + reference) * magnitude[i])
              << machine::name(dtype) << " " << algorithm;
      }
  });
}

TEST(Communicator, TakesTheMaximum) {
  machine::run_ranks(3, [](World& world) {
    Communicator group(world, world.group(), Transport::shared_memory);
    Tensor data = tensor(world, Dtype::float32, 1001);
    machine::from_doubles(data, values(world.rank(), 1001));
    group.all_reduce(data, data, {}, Reduction::max);
    const std::vector<double> got = machine::to_doubles(data);
    for (std::int64_t i = 0; i < 1001; ++i)
      EXPECT_EQ(got[static_cast<std::size_t>(i)],
                std::max({value(0, i), value(1, i), value(2, i)}));
  });
}

TEST(Choose, TakesTheSameAlgorithmOnEveryRank) {
  machine::run_ranks(4, [](World& world) {
    Communicator group(world, world.group(), Transport::shared_memory);
    for (const Operation operation : {Operation::all_reduce, Operation::gather}) {
      const Choice choice =
          choose(world, group, operation, Dtype::float32, 1000, Reduction::sum, 1);
      ASSERT_TRUE(choice.best && choice.next);
      EXPECT_LE(choice.best_s, choice.next_s);
      EXPECT_GT(choice.best_s, 0);
      const auto all = world.all_gather(world.group(), choice.text());
      for (const std::string& text : all) EXPECT_EQ(text, all.front());
      EXPECT_NE(all.front().find(" times as fast as "), std::string::npos) << all.front();
    }
  });
}

TEST(Communicator, BarrierHoldsEverybody) {
  std::atomic<int> arrived{0};
  machine::run_ranks(5, [&](World& world) {
    Communicator group(world, world.group(), Transport::shared_memory);
    for (int round = 1; round <= 100; ++round) {
      ++arrived;
      group.barrier();
      EXPECT_GE(arrived.load(), 5 * round);
      group.barrier();
    }
  });
}

TEST(Communicator, RefusesWhatDoesNotFit) {
  machine::run_ranks(2, [](World& world) {
    Communicator group(world, world.group(), Transport::shared_memory);
    const Tensor four = tensor(world, Dtype::float32, 4), six = tensor(world, Dtype::float32, 6);
    EXPECT_THROW(group.all_reduce(four, six), std::invalid_argument);
    EXPECT_THROW(group.all_gather(four, six), std::invalid_argument);
    EXPECT_THROW(group.all_reduce(four, tensor(world, Dtype::bfloat16, 4)), std::invalid_argument);
    EXPECT_THROW(group.all_reduce(four, four, "rign"), std::invalid_argument);
    EXPECT_THROW(group.all_reduce(four, four, library), std::invalid_argument);
  });
}

}  // namespace
}  // namespace collectives
