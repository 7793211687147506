#include "collectives/communicator/communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "collectives/communicator/choose.h"
#include "collectives/communicator/library.h"
#include "collectives/cost.h"
#include "machine/link/connect.h"

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

// Sanitizers slow the code down tenfold. The thread sanitizer also maps shadow memory again for
// every large buffer, so the large count is smaller.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
const std::int64_t counts[] = {0, 1, 7, 1009, 20'011};
#else
const std::int64_t counts[] = {0, 1, 7, 64, 1009, 150'001};
#endif

// Parts of many lengths, some of them empty. With several ranks, the last rank sends nothing.
std::shared_ptr<const TrafficMatrix> traffic_of(Operation operation, int ranks,
                                                std::int64_t count) {
  if (operation != Operation::all_to_all_v) return {};
  std::vector<std::int64_t> elements;
  for (int from = 0; from < ranks; ++from)
    for (int to = 0; to < ranks; ++to) {
      const bool empty = (ranks > 1 && from == ranks - 1) || (3 * from + 5 * to) % 4 == 1;
      elements.push_back(empty ? 0 : count * ((from + 2 * to) % 3 + 1) / 3);
    }
  return std::make_shared<const TrafficMatrix>(ranks, elements);
}

// Returns the expected output of a rank. If an operation works on shares, share i has `count`
// elements.
std::vector<double> expected_output(Operation operation, int rank, int ranks, int root,
                                    std::int64_t count, const TrafficMatrix* traffic) {
  std::vector<double> result;
  const auto sums = [&](std::int64_t from) {
    for (std::int64_t i = from; i < from + count; ++i) {
      result.push_back(0);
      for (int peer = 0; peer < ranks; ++peer) result.back() += value(peer, i);
    }
  };
  const auto some = [&](int whose, std::int64_t from, std::int64_t elements) {
    for (std::int64_t i = from; i < from + elements; ++i) result.push_back(value(whose, i));
  };
  const auto part = [&](int whose, std::int64_t from) { some(whose, from, count); };
  switch (operation) {
    case Operation::all_gather:
    case Operation::gather:
      for (int peer = 0; peer < ranks; ++peer) part(peer, 0);
      break;
    case Operation::all_to_all:
      for (int peer = 0; peer < ranks; ++peer) part(peer, rank * count);
      break;
    case Operation::all_to_all_v:
      for (int peer = 0; peer < ranks; ++peer) {
        std::int64_t before = 0;
        for (int lower = 0; lower < rank; ++lower) before += (*traffic)(peer, lower);
        some(peer, before, (*traffic)(peer, rank));
      }
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
  const auto traffic = traffic_of(algorithm.operation, ranks, count);
  if (traffic) count = traffic->busiest();
  const Call call{rank, ranks, 1, root, group.inner(), traffic.get()};
  const Extents held = extents(algorithm.operation, call);
  const std::int64_t whole = deals_in_shares(algorithm.operation) ? count * ranks : count;
  const auto buffer = [&](Extent extent, std::int64_t part) {
    const std::int64_t size = traffic ? part : extent == Extent::whole ? whole : count;
    return extent == Extent::none ? Tensor() : tensor(world, dtype, size);
  };
  Tensor in = buffer(held.input, traffic ? traffic->sent_by(rank) : 0),
         out = buffer(held.output, traffic ? traffic->received_by(rank) : 0);
  if (in_place && in && out) {
    if (held.input == held.output) out = in;
    if (held.input == Extent::own_share) in = out.slice(rank * count, {count});
    if (held.output == Extent::own_share) out = in.slice(rank * count, {count});
  }
  if (in) machine::from_doubles(in, values(rank, in.size()));
  group.link().reset_traffic();
  group.run(algorithm.operation, algorithm.name, in, out, Reduction::sum, root, traffic);
  // No rank reads the input after the call.
  if (in && !in_place)
    machine::from_doubles(in, std::vector<double>(static_cast<std::size_t>(in.size()), -9));
  const std::string what = std::string(name(algorithm.operation)) + " " +
                           std::string(algorithm.name) + " " + std::string(machine::name(dtype)) +
                           " x " + std::to_string(count) + " among " + std::to_string(ranks) +
                           ", inner " + std::to_string(group.inner()) + ", root " +
                           std::to_string(root) + (in_place ? ", in place" : "");
  if (out) {
    ASSERT_EQ(machine::to_doubles(out),
              expected_output(algorithm.operation, rank, ranks, root, count, traffic.get()))
        << what;
  }
  EXPECT_EQ(group.link().total(), expected_traffic(algorithm, call, count, dtype)) << what;
}

// Dtypes that represent the values above and their sums over up to 15 ranks.
constexpr Dtype signed_dtypes[] = {Dtype::float32, Dtype::float64, Dtype::bfloat16,
                                   Dtype::float16, Dtype::int8,    Dtype::int64};

// The algorithms for this number of ranks, out of place and in place.
template <class Check>
void every_algorithm(World& world, const Communicator& group, Check one) {
  for (const Algorithm& algorithm : algorithms())
    for (const bool in_place : {false, true}) {
      if (algorithm.operation == Operation::barrier) continue;
      if (in_place && !may_be_in_place(algorithm.operation)) continue;
      if (!algorithm.refuses({world.rank(), world.size(), 1, 0, group.inner()}).empty()) continue;
      one(algorithm, in_place, world.size() / 2);
      if (testing::Test::HasFatalFailure()) return;
    }
}

TEST(Communicator, EveryAlgorithmIsExactOnIntegersAndSendsTheExpectedVolume) {
  for (const int ranks : {1, 2, 3, 4, 7, 8})
    machine::run_ranks(ranks, [](World& world) {
      Communicator group(world, world.group(), Transport::shared_memory);
      every_algorithm(world, group, [&](const Algorithm& algorithm, bool in_place, int root) {
        for (const Dtype dtype : signed_dtypes)
          for (const std::int64_t count : counts) {
            // A dtype matters most with more than a few elements.
            const bool few = count < 7 && dtype == Dtype::int8;
            if (count != 7 && count != 1009 && !few && dtype != Dtype::float32) continue;
            // With several pieces, two peers of a rank are enough.
            if (count > 2000 && world.size() > 3) continue;
            check(world, group, algorithm, dtype, count, in_place, root);
          }
      });
    });
}

// A wrapper of another link that receives every message late.
class LateLink final : public machine::Link {
 public:
  explicit LateLink(std::unique_ptr<machine::Link> link)
      : Link(link->group()), link_(std::move(link)) {}
  Transport transport() const override { return link_->transport(); }

 private:
  static void wait() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }
  std::uint64_t do_send(int peer, const void* data, std::size_t bytes) override {
    return last_[peer] = link_->send(peer, data, bytes);
  }
  void do_wait_sent(int peer, std::uint64_t number) override { link_->wait_sent(peer, number); }
  std::uint64_t last_sent(int peer) const override {
    const auto found = last_.find(peer);
    return found == last_.end() ? 0 : found->second;
  }
  void do_receive(int peer, void* into, std::size_t bytes, machine::Store store) override {
    wait();
    link_->receive(peer, into, bytes, store);
  }
  const void* do_receive_in_place(int peer, std::size_t bytes) override {
    wait();
    return link_->receive_in_place(peer, bytes);
  }
  void do_release(int peer) override { link_->release(peer); }

  std::unique_ptr<machine::Link> link_;
  std::map<int, std::uint64_t> last_;
};

// A collective ends only after the peers have taken this rank's input. `check` overwrites the input
// immediately.
TEST(Communicator, InputMayBeOverwrittenWhenPeersAreLate) {
  for (const int ranks : {2, 3, 4})
    machine::run_ranks(ranks, [](World& world) {
      std::unique_ptr<machine::Link> link =
          machine::connect(world, world.group(), Transport::shared_memory);
      if (world.rank() == world.size() - 1) link = std::make_unique<LateLink>(std::move(link));
      Communicator group(world, std::move(link));
      every_algorithm(world, group, [&](const Algorithm& algorithm, bool in_place, int root) {
        for (const std::int64_t count : {7, 20'011})
          check(world, group, algorithm, Dtype::float32, count, in_place, root);
      });
    });
}

// Takes minutes. CTest runs it as collectives_communicator_full.
TEST(Communicator, DISABLED_EveryAlgorithmAmongMoreRanks) {
  for (const int ranks : {2, 3, 5, 6, 8, 11, 12})
    machine::run_ranks(ranks, [](World& world) {
      Communicator group(world, world.group(), Transport::shared_memory);
      every_algorithm(world, group, [&](const Algorithm& algorithm, bool in_place, int root) {
        for (const Dtype dtype : signed_dtypes)
          for (const std::int64_t count : {0, 1, 2, 7, 64, 1009, 65'537})
            if (!testing::Test::HasFatalFailure())
              check(world, group, algorithm, dtype, count, in_place, root);
        if (!has_root(algorithm.operation)) return;
        for (int other = 0; other < world.size(); ++other)
          check(world, group, algorithm, Dtype::float32, 1009, in_place, other);
      });
    });
}

// Tests every `inner` (ranks that are near each other) with the algorithms that use it.
TEST(Communicator, EveryInnerIsRight) {
  for (const int ranks : {4, 6, 8, 12})
    machine::run_ranks(ranks, [](World& world) {
      Communicator group(world, world.group(), Transport::shared_memory);
      EXPECT_THROW(group.set_inner(5), std::invalid_argument);
      EXPECT_THROW(group.set_inner(0), std::invalid_argument);
      for (int inner = 1; inner <= group.size(); ++inner) {
        if (group.size() % inner != 0) continue;
        group.set_inner(inner);
        for (const Algorithm& algorithm : algorithms()) {
          if (!reads_inner(algorithm)) continue;
          for (const std::int64_t count : {7, 1009})
            for (const bool in_place : {false, true})
              check(world, group, algorithm, Dtype::float32, count, in_place, group.size() - 1);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    });
}

// A call of the same tensors as the last one, with something else changed each time.
TEST(Communicator, TheSameTensorsMayBeCalledOtherwise) {
  constexpr std::int64_t count = 64;
  machine::run_ranks(4, [](World& world) {
    Communicator group(world, world.group(), Transport::shared_memory);
    const Tensor in = tensor(world, Dtype::float32, count),
                 out = tensor(world, Dtype::float32, count);
    machine::from_doubles(in, values(world.rank(), count));
    for (const int root : {0, 1, 1, 0}) {
      group.run(Operation::broadcast, "direct", in, out, Reduction::sum, root);
      EXPECT_EQ(machine::to_doubles(out), values(root, count));
    }
    const std::vector<double> sums =
        expected_output(Operation::all_reduce, world.rank(), 4, 0, count, nullptr);
    for (const Reduction reduction :
         {Reduction::sum, Reduction::avg, Reduction::max, Reduction::sum}) {
      group.all_reduce(in, out, "direct", reduction);
      for (std::int64_t i = 0; i < count; ++i) {
        const double sum = sums[static_cast<std::size_t>(i)];
        const double largest = std::max({value(0, i), value(1, i), value(2, i), value(3, i)});
        EXPECT_EQ(machine::to_doubles(out)[static_cast<std::size_t>(i)],
                  reduction == Reduction::sum   ? sum
                  : reduction == Reduction::avg ? sum / 4
                                                : largest);
      }
    }
    const auto sends = [&](std::string_view algorithm, std::string_view expected,
                           std::int64_t elements = 64) {
      group.link().reset_traffic();
      group.all_reduce(in.slice(0, {elements}), out.slice(0, {elements}), algorithm);
      const Algorithm& its = find_algorithm(Operation::all_reduce, expected);
      EXPECT_EQ(group.link().total(),
                expected_traffic(its, {world.rank(), 4, 1, 0, group.inner(), nullptr}, elements,
                                 Dtype::float32))
          << expected;
    };
    for (const std::string_view algorithm :
         {"direct", "parameter_server", "direct", "binomial_tree"})
      sends(algorithm, algorithm);
    sends("direct", "direct", 32);
    sends("direct", "direct", 64);
    for (const int inner : {1, 2, 4}) {
      group.set_inner(inner);
      sends("hierarchical", "hierarchical");
    }
    for (const std::string_view algorithm : {"direct", "parameter_server"}) {
      GroupAlgorithms algorithms;
      algorithms.set(Operation::all_reduce, algorithm);
      group.set_algorithms(algorithms);
      sends({}, algorithm);
    }
    EXPECT_THROW(group.all_reduce(in, out.slice(0, {32}), "direct"), std::invalid_argument);
  });
}

// Sizes that change from step to step, as in a mixture of experts.
TEST(Communicator, TakesAnotherMatrixEachTime) {
  machine::run_ranks(3, [](World& world) {
    Communicator group(world, world.group(), Transport::shared_memory);
    const Algorithm& direct = find_algorithm(Operation::all_to_all_v, "direct");
    for (std::int64_t count = 0; count < 20; ++count)
      check(world, group, direct, Dtype::float32, count, false, 0);
    // Messages of one size, to the next rank and back.
    for (const bool next : {true, false, true}) {
      const std::vector<std::int64_t> ahead{0, 4, 0, 0, 0, 4, 4, 0, 0},
          back{0, 0, 4, 4, 0, 0, 0, 4, 0};
      const Tensor in = tensor(world, Dtype::float32, 4), out = tensor(world, Dtype::float32, 4);
      machine::from_doubles(in, values(world.rank(), 4));
      group.all_to_all_v(in, out, std::make_shared<const TrafficMatrix>(3, next ? ahead : back));
      EXPECT_EQ(machine::to_doubles(out), values((world.rank() + (next ? 2 : 1)) % 3, 4));
    }
    const Tensor four = tensor(world, Dtype::float32, 4);
    const auto smaller = std::make_shared<const TrafficMatrix>(2, std::vector<std::int64_t>(4, 2));
    const auto fits = std::make_shared<const TrafficMatrix>(
        3, std::vector<std::int64_t>{0, 4, 0, 0, 0, 4, 4, 0, 0});
    EXPECT_THROW(group.all_to_all_v(four, four, smaller), std::invalid_argument);
    EXPECT_THROW(group.all_to_all_v(four, four, {}), std::invalid_argument);
    EXPECT_THROW(group.all_to_all_v(four, tensor(world, Dtype::float32, 5), fits),
                 std::invalid_argument);
    EXPECT_THROW(group.run(Operation::all_to_all, {}, four, four, Reduction::sum, 0, fits),
                 std::invalid_argument);
    group.all_to_all_v(four, tensor(world, Dtype::float32, 4), fits);
  });
}

// With real numbers, all ranks hold the same bits for any order of the sum.
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
TEST(Communicator, SumsRoundOncePerAddition) {
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
      const Choice choice = choose(group, operation, Dtype::float32, 1000, Reduction::sum, 1);
      ASSERT_TRUE(choice.best && choice.next);
      EXPECT_LE(choice.best_s, choice.next_s);
      EXPECT_GT(choice.best_s, 0);
      const auto all = world.all_gather(world.group(), choice.text());
      for (const std::string& text : all) EXPECT_EQ(text, all.front());
      EXPECT_NE(all.front().find(" times as fast as "), std::string::npos) << all.front();
    }
  });
}

TEST(Communicator, BarrierWaitsForAllRanks) {
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

TEST(Communicator, RejectsMismatchedArguments) {
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

TEST(Library, NamesWhatNcclDoesNotReduce) {
  using enum Operation;
  const auto why_not = [](Operation operation, Reduction reduction, Dtype dtype, int sm) {
    return why_not_nccl(operation, reduction, dtype, 3, sm);
  };
  EXPECT_NE(why_not(all_reduce, Reduction::sum, Dtype::float8_e4m3, 80), "");
  EXPECT_NE(why_not(reduce_scatter, Reduction::max, Dtype::float8_e5m2, 89), "");
  EXPECT_EQ(why_not(all_reduce, Reduction::sum, Dtype::float8_e4m3, 90), "");
  EXPECT_EQ(why_not(all_gather, Reduction::sum, Dtype::float8_e4m3, 80), "");
  EXPECT_EQ(why_not(all_reduce, Reduction::sum, Dtype::int8, 80), "");
  EXPECT_NE(why_not(all_reduce, Reduction::avg, Dtype::float32, 90), "");
}

}  // namespace
}  // namespace collectives
