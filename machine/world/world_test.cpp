#include "machine/world/world.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "machine/base/error.h"
#include "machine/device/gemm.h"
#include "machine/device/tensor.h"
#include "machine/link/connect.h"
#include "machine/world/binding.h"
#include "machine/world/step_clock.h"

namespace machine {
namespace {

TEST(World, GathersInGroupOrder) {
  for (const int ranks : {1, 2, 3, 8})
    run_ranks(ranks, [&](World& world) {
      for (int round = 0; round < 3; ++round) {
        const std::string mine =
            std::string(static_cast<std::size_t>(world.rank() * 5000), 'x') + std::to_string(round);
        const auto all = world.all_gather(world.group(), mine);
        for (int rank = 0; rank < ranks; ++rank)
          ASSERT_EQ(
              all[static_cast<std::size_t>(rank)],
              std::string(static_cast<std::size_t>(rank * 5000), 'x') + std::to_string(round));
        EXPECT_EQ(world.broadcast(world.group(), ranks - 1, mine), all.back());
      }
    });
}

TEST(World, ValuesArriveUnchanged) {
  struct Pair {
    int rank;
    double half;
  };
  run_ranks(3, [](World& world) {
    const int rank = world.rank();
    EXPECT_EQ(world.all_gather(world.group(), 7 * rank), (std::vector{0, 7, 14}));
    const std::vector<Pair> pairs = world.all_gather(world.group(), Pair{rank, rank / 2.0});
    EXPECT_EQ(pairs[2].rank, 2);
    EXPECT_EQ(pairs[1].half, 0.5);
    const std::vector<float> mine(static_cast<std::size_t>(rank), 0.25F);
    EXPECT_EQ(world.all_gather(world.group(), mine),
              (std::vector<std::vector<float>>{{}, {0.25F}, {0.25F, 0.25F}}));
    EXPECT_EQ(world.broadcast(world.group(), 2, 1.5 * rank), 3.0);
    EXPECT_EQ(world.broadcast(world.group(), 1, mine), std::vector{0.25F});
  });
}

TEST(World, AFaultAffectsOneRankOnly) {
  run_ranks(2, [](World& world) {
    if (world.rank() == 1) {
      world.faults().memory_bytes = 1000;
      world.faults().after_gemm = [](Stream&, const Matrix& c) {
        static_cast<float*>(c.data)[0] = -1;
      };
    }
    world.barrier(world.group());
    Device& device = world.device();
    if (world.rank() == 1)
      EXPECT_THROW(device.allocate(1001, Category::buffers), MachineError);
    else
      EXPECT_NO_THROW(device.allocate(1001, Category::buffers));
    const Tensor a(device, Dtype::float32, {2, 2}, Category::buffers);
    const Tensor c(device, Dtype::float32, {2, 2}, Category::buffers);
    from_doubles(a, {1, 2, 3, 4});
    gemm(device.stream(), matrix(a), matrix(a), matrix(c));
    EXPECT_EQ(to_doubles(c)[0], world.rank() == 1 ? -1 : 7);
  });
}

TEST(World, BarrierWaitsForAllRanks) {
  std::atomic<int> arrived{0};
  run_ranks(4, [&](World& world) {
    for (int round = 1; round <= 50; ++round) {
      ++arrived;
      world.barrier(world.group());
      EXPECT_GE(arrived.load(), 4 * round);
      world.barrier(world.group());
    }
  });
}

TEST(World, AFailedRankEndsTheWaitsOfOtherRanks) {
  try {
    run_ranks(3, [](World& world) {
      if (world.rank() == 1) throw MachineError("rank 1 lost its disk");
      world.barrier(world.group());
    });
    FAIL();
  } catch (const PeerFailure&) {
    FAIL() << "the cause, not the consequence, must be reported";
  } catch (const MachineError& error) {
    EXPECT_STREQ(error.what(), "rank 1 lost its disk");
  }
}

TEST(World, ATimeoutNamesBothRanks) {
  try {
    run_ranks(
        2,
        [](World& world) {
          const auto link = connect(world, world.group(), Transport::shared_memory);
          world.board().set_activity("the test");
          char byte = 0;
          link->count_as({Operation::all_reduce, Dtype::float32});
          if (world.rank() == 0) link->receive(1, &byte, 1);
          world.barrier(world.group());
        },
        0.3);
    FAIL();
  } catch (const Timeout& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("rank 0 waited"), std::string::npos) << text;
    EXPECT_NE(text.find("in all_reduce for rank 1 to send message 1 (1 bytes), during the test"),
              std::string::npos)
        << text;
  }
}

TEST(World, ThreadsHaveNoMpi) {
  run_ranks(1, [](World& world) {
    EXPECT_THROW(connect(world, world.group(), Transport::mpi), MachineError);
  });
}

double seconds_of(const StepTimes& times, std::string_view name) {
  for (const StepTimes::Row& row : times.own.rows)
    if (row.text() == name) return row.seconds;
  return 0;
}

void sleep_s(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

TEST(StepClock, PartsExcludeEachOtherAndSumToTheStep) {
  StepClock clock;
  for (int round = 0; round < 2; ++round) {  // the second start forgets the first round
    clock.start();
    {
      const During forward(Part::forward);
      sleep_s(0.002);
      {
        const During reduce(Part::communication, "tp");
        sleep_s(0.004);
        const DuringWait wait(3);
        sleep_s(0.002);
      }
    }
    {
      const DuringMessage message("pp");
      sleep_s(0.001);
      const DuringWait wait(1);
      sleep_s(0.003);
    }
    sleep_s(0.001);
    clock.stop();
  }
  const During unheard(Part::data);
  const StepTimes& times = clock.times();
  double sum = 0;
  for (const StepTimes::Row& row : times.own.rows) sum += row.seconds;
  EXPECT_NEAR(sum, times.end_s - times.start_s, 1e-9);
  EXPECT_GE(seconds_of(times, "communication tp"), 0.006);
  EXPECT_GE(seconds_of(times, "bubble"), 0.003);
  EXPECT_GE(seconds_of(times, "other"), 0.001);
  EXPECT_EQ(seconds_of(times, "data"), 0);
  for (const auto& [part, apart] : {std::pair("forward", 0.011), {"communication pp", 0.012}}) {
    EXPECT_GE(seconds_of(times, part), 0.001);
    EXPECT_LE(seconds_of(times, part), times.end_s - times.start_s - apart + 0.0005);
  }
  EXPECT_GE(times.waited_s.at(3), 0.002);
  EXPECT_GE(times.waited_s.at(1), 0.003);
  EXPECT_EQ(times.own.intervals.size(), 5u);
}

TEST(StepClock, CommunicationOfAnotherThreadIsHiddenUnlessWaitedFor) {
  StepClock clock;
  clock.start();
  StepClock* const running = StepClock::running();
  ASSERT_EQ(running, &clock);
  std::atomic<bool> sends{false}, waits{false};
  std::thread other([&] {
    const StepClock::Job job(running, "progress");
    const During reduce(Part::communication, "dp");
    sends = true;
    while (!waits) sleep_s(0.001);
    sleep_s(0.005);
  });
  {
    const During forward(Part::forward);
    while (!sends) sleep_s(0.001);
    sleep_s(0.005);
  }
  {
    const During waiting(Part::communication, "dp", StepTimes::other_thread);
    waits = true;
    other.join();
  }
  clock.stop();
  EXPECT_EQ(StepClock::running(), nullptr);
  const double hidden = hidden_communication(clock.times()).at("dp");
  const auto& sent = clock.times().others.at(0).intervals.at(0);
  EXPECT_GE(hidden, 0.005);
  EXPECT_LE(hidden, sent.end_s - sent.start_s - 0.005);
  EXPECT_GE(seconds_of(clock.times(), "communication dp"), 0.005);
}

TEST(StepClock, ALinkReportsTheAwaitedRank) {
  run_ranks(2, [](World& world) {
    const auto link = connect(world, world.group(), Transport::shared_memory);
    char byte = 0;
    StepClock clock;
    clock.start();
    if (world.rank() == 0) {
      link->receive(1, &byte, 1);
    } else {
      sleep_s(0.01);
      link->send(0, &byte, 1);
    }
    clock.stop();
    if (world.rank() == 0) {
      EXPECT_GE(clock.times().waited_s.at(1), 0.005);
    } else {
      EXPECT_TRUE(clock.times().waited_s.empty());
    }
  });
}

TEST(Binding, AVirtualMachineMeasuresACacheAboveTheShareOfItsCores) {
  constexpr std::size_t mib = std::size_t{1} << 20;
  const SharedCache cache{260 * mib, 2, true};
  std::vector<std::size_t> asked;  // of a core
  const auto stays = [&](std::size_t bytes, int ranks, const SharedCache& of, bool answer) {
    return stays_in_cache(bytes, ranks, of, [&](std::size_t of_core) {
      asked.push_back(of_core);
      return answer;
    });
  };
  EXPECT_TRUE(stays(8 * mib, 2, cache, false));
  EXPECT_FALSE(stays(261 * mib, 2, cache, true));
  EXPECT_TRUE(stays(260 * mib, 2, {260 * mib, 2, false}, false));
  EXPECT_TRUE(stays(32 * mib, 16, {32 * mib, 16, true}, false)) << "has the whole cache";
  EXPECT_TRUE(asked.empty());
  EXPECT_TRUE(stays(9 * mib, 2, cache, true));
  EXPECT_FALSE(stays(16 * mib, 1, cache, false));
  EXPECT_FALSE(stays(259 * mib, 2, cache, false));
  EXPECT_FALSE(stays(32 * mib, 4, cache, false)) << "two ranks share a core";
  EXPECT_EQ(asked, (std::vector<std::size_t>{8 * mib, 16 * mib, 130 * mib, 16 * mib}));
  EXPECT_FALSE(stays_in_cache(last_level_cache_bytes() + 1, 1));
}

TEST(Binding, RanksShareNoCoreWhileThereAreEnough) {
  const std::vector<int> cores{0, 1, 2, 3, 8, 9, 10};
  for (int ranks = 1; ranks <= 7; ++ranks) {
    std::vector<int> seen;
    for (int rank = 0; rank < ranks; ++rank)
      for (const int core : cores_of(rank, ranks, cores)) seen.push_back(core);
    EXPECT_EQ(seen, cores) << ranks << " ranks use every core once, in order";
  }
  EXPECT_EQ(cores_of(9, 16, cores), (std::vector<int>{2}));
  EXPECT_EQ(text(cores), "0-3,8-10");
}

}  // namespace
}  // namespace machine
