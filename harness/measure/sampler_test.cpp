#include "harness/measure/sampler.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>

#include "harness/measure/statistics.h"
#include "machine/base/clock.h"
#include "machine/device/kernels.h"
#include "machine/link/connect.h"

namespace harness {
namespace {

void wait_for(double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {
  }
}

class Timed : public Instance {
 public:
  std::function<void()> on_prepare = [] {}, on_run = [] {}, on_yardstick, on_rehearse = [] {};
  std::function<std::optional<machine::Failure>(Runner)> on_check;
  bool can_repeat = true, queues = false;
  int least = 0;
  void prepare() override { on_prepare(); }
  void run() override { on_run(); }
  bool repeatable() const override { return can_repeat; }
  int least_samples() const override { return least; }
  bool only_queues() const override { return queues; }
  bool has_yardstick() const override { return static_cast<bool>(on_yardstick); }
  void yardstick() override { on_yardstick(); }
  bool has_check() const override { return static_cast<bool>(on_check); }
  void rehearse(Runner) override { on_rehearse(); }
  std::optional<machine::Failure> check(Runner runner) override { return on_check(runner); }
  void judge(Judge&) override {}
  Cost cost() const override { return {}; }
  void describe(Description&) override {}
};

template <class Body>
void on_ranks(int ranks, Body body) {
  machine::run_ranks(ranks, [&](machine::World& world) {
    const auto link =
        ranks > 1 ? machine::connect(world, world.group(), machine::Transport::shared_memory)
                  : nullptr;
    body(world, link.get());
  });
}

TEST(Sampler, ReportsTheTimesOfEveryBlockOnRankZero) {
  on_ranks(2, [](machine::World& world, machine::Link* link) {
    Timed timed;
    timed.least = 4;
    timed.on_run = [] { wait_for(0.02); };
    std::vector<int> counts;
    const auto on_block = [&](std::span<const double> times) {
      EXPECT_GE(std::ranges::min(times), 0.02);
      counts.push_back(static_cast<int>(times.size()));
    };
    const SamplingLimits limits{.seconds = 0.001, .on_block = on_block};
    const Sampled sampled = Sampler(world.device(), link, limits).sample(timed);
    if (world.rank() == 0)
      EXPECT_EQ(counts, (std::vector{1, 2, 3, 4}));
    else
      EXPECT_TRUE(counts.empty());
    EXPECT_EQ(sampled.unit.samples.iterations(), 4);
  });
}

TEST(Sampler, MatrixHoldsEveryRank) {
  on_ranks(3, [](machine::World& world, machine::Link* link) {
    Timed timed;
    const double mine = 1e-4 * (1 + world.rank());
    timed.on_run = [&] { wait_for(mine); };
    const Sampled sampled = Sampler(world.device(), link, {.seconds = 0.2}).sample(timed);
    EXPECT_NE(sampled.stop, Stop::no);
    if (world.rank() != 0) return;
    const SampleMatrix& matrix = sampled.unit.samples;
    ASSERT_EQ(matrix.ranks, 3);
    const auto iterations = static_cast<std::size_t>(matrix.iterations());
    ASSERT_EQ(sampled.unit.worst.size(), iterations);
    for (std::size_t i = 0; i < iterations; ++i) {
      double worst = 0;
      for (std::size_t rank = 0; rank < 3; ++rank) {
        const double time = matrix.seconds[rank * iterations + i];
        EXPECT_GE(time, 1e-4 * static_cast<double>(1 + rank)) << rank << " " << i;
        worst = std::max(worst, time);
      }
      EXPECT_EQ(sampled.unit.worst[i], worst);
    }
    EXPECT_GT(sampled.cpu_seconds, 0);
  });
}

TEST(Sampler, NamesTheFirstWrongSample) {
  on_ranks(2, [](machine::World& world, machine::Link* link) {
    Timed timed;
    int rehearsed = 0, runs = 0, samples = 0, checked = 0, sample = -1;
    timed.can_repeat = false;
    timed.on_rehearse = [&] { ++rehearsed; };
    timed.on_run = [&] {
      EXPECT_EQ(++runs, rehearsed);
      if (sample >= 0) ++samples;
      wait_for(1e-3);
    };
    timed.on_check = [&](Runner) -> std::optional<machine::Failure> {
      EXPECT_EQ(++checked, runs);
      if (world.rank() != 1 || sample != 20) return std::nullopt;
      return machine::Failure{.peer = 0, .text = "element 3 is 5"};
    };
    const SamplingLimits limits{
        .seconds = 10, .min_samples = 3000, .max_samples = 3000, .sample = &sample};
    const Sampled sampled = Sampler(world.device(), link, limits).sample(timed);
    EXPECT_TRUE(sampled.failed_somewhere);
    EXPECT_EQ(samples, 21) << "a rank went on after another rank had failed";
    EXPECT_EQ(runs, rehearsed) << "a rehearsal may wait for the rank that failed";
    ASSERT_EQ(sampled.failure.has_value(), world.rank() == 1);
    if (world.rank() == 0) return;
    EXPECT_EQ(sampled.failure->sample, 20);
    EXPECT_EQ(sampled.failure->text, "sample 20: element 3 is 5");
  });
}

TEST(Sampler, ChecksWhenNoRankRunsAnyMore) {
  std::atomic<int> runs_of_all = 0;
  on_ranks(2, [&](machine::World& world, machine::Link* link) {
    Timed timed;
    int runs = 0;
    timed.can_repeat = false;
    timed.on_run = [&] {
      wait_for(world.rank() == 0 ? 1e-4 : 2e-3);
      ++runs;
      ++runs_of_all;
    };
    timed.on_check = [&](Runner) -> std::optional<machine::Failure> {
      EXPECT_GE(runs_of_all, 2 * runs);
      return std::nullopt;
    };
    Sampler(world.device(), link, {.seconds = 0.1}).sample(timed);
    EXPECT_GE(runs, 3);
  });
}

TEST(Sampler, AlsoChecksTheYardstick) {
  Timed timed;
  timed.on_run = timed.on_yardstick = [] { wait_for(1e-4); };
  int rehearsed = 0, checked = 0;
  timed.on_rehearse = [&] { ++rehearsed; };
  timed.on_check = [&](Runner runner) -> std::optional<machine::Failure> {
    EXPECT_EQ(++checked, rehearsed);
    if (runner == Runner::yardstick) return machine::Failure{.text = "element 3 is 5"};
    return std::nullopt;
  };
  const auto device = machine::make_host_device();
  EXPECT_EQ(Sampler(*device, nullptr, {.seconds = 0.1}).sample(timed).failure->text,
            "the yardstick, in warm-up: element 3 is 5");
}

TEST(Sampler, LoopRunsBackToBackAndGivesTheMeanOverRanks) {
  on_ranks(2, [](machine::World& world, machine::Link* link) {
    Timed timed;
    const double mine = 1e-4 * (1 + world.rank());
    timed.on_run = [&] { wait_for(mine); };
    const Sampled sampled =
        Sampler(world.device(), link, {.seconds = 0.2, .timing = Timing::loop}).sample(timed);
    EXPECT_EQ(sampled.unit.batch, 20);
    if (world.rank() != 0) return;
    const SampleMatrix& matrix = sampled.unit.samples;
    const auto iterations = static_cast<std::size_t>(matrix.iterations());
    ASSERT_EQ(sampled.unit.mean.size(), iterations);
    for (std::size_t i = 0; i < iterations; ++i)
      EXPECT_DOUBLE_EQ(sampled.unit.mean[i],
                       (matrix.seconds[i] + matrix.seconds[iterations + i]) / 2);
  });
}

TEST(Sampler, WindowTimesFromTheClockStart) {
  on_ranks(2, [](machine::World& world, machine::Link* link) {
    Timed timed;
    timed.on_run = [&] { wait_for(2e-4); };
    const SamplingLimits limits{
        .seconds = 0.3, .min_samples = 50, .max_samples = 50, .timing = Timing::window};
    const Sampled sampled = Sampler(world.device(), link, limits).sample(timed);
    EXPECT_EQ(sampled.unit.batch, 1);
    if (world.rank() != 0) return;
    const SampleMatrix& matrix = sampled.unit.samples;
    EXPECT_EQ(sampled.unit.worst.size(), static_cast<std::size_t>(matrix.iterations()));
    for (const double time : matrix.seconds) EXPECT_GE(time, 2e-4);  // and no NaN among them
    EXPECT_GT(matrix.iterations() + sampled.unit.late, 0);
  });
}

// A device that records its calls. The time of an event is its number.
struct Armed {
  std::atomic<int> queued{0}, opened_early{0};
  int ranks = 1;
};

class WritingDevice final : public machine::Device {
 public:
  WritingDevice(Armed& armed, bool holds) : Device(Kind::cuda), armed_(armed), holds_(holds) {
    stream_ = std::make_unique<WritingStream>(*this);
  }
  std::string description() const override { return "writes"; }
  std::unique_ptr<machine::Stream> make_stream() override { return nullptr; }
  std::unique_ptr<machine::Gate> make_gate(double) override {
    return std::make_unique<WritingGate>(*this);
  }
  std::string written;  // c: gate closed, e: event, r: run, o: gate opened, s: synchronized

 private:
  struct NumberedEvent final : machine::Event {
    explicit NumberedEvent(double at) : at(at) {}
    void synchronize() override {}
    double seconds_since(const Event& earlier) const override {
      return at - dynamic_cast<const NumberedEvent&>(earlier).at;
    }
    double at;
  };
  struct WritingStream final : machine::Stream {
    explicit WritingStream(WritingDevice& device) : Stream(device, nullptr), device_(device) {}
    void copy(void*, const void*, std::size_t) override {}
    std::unique_ptr<machine::Event> record() override {
      device_.written += 'e';
      return std::make_unique<NumberedEvent>(static_cast<double>(device_.written.size()));
    }
    void wait(const machine::Event&) override {}
    void synchronize() override { device_.written += 's'; }
    WritingDevice& device_;
  };
  struct WritingGate final : machine::Gate {
    explicit WritingGate(WritingDevice& device) : device_(device) {}
    void close() override { device_.written += 'c'; }
    void open() override {
      device_.written += 'o';
      // Every rank has queued its runs of this sample and of all earlier samples.
      if (device_.armed_.queued < device_.armed_.ranks * ++samples_) ++device_.armed_.opened_early;
    }
    bool held() override { return device_.holds_; }
    WritingDevice& device_;
    int samples_ = 0;
  };
  void* do_allocate(std::size_t) override { return nullptr; }
  void do_free(void*, std::size_t) override {}
  Armed& armed_;
  bool holds_;
};

TEST(Sampler, ArmedRunsAreQueuedBehindAGateThatOpensForAll) {
  for (const bool holds : {true, false}) {
    Armed armed;
    armed.ranks = 2;
    on_ranks(2, [&](machine::World& world, machine::Link* link) {
      WritingDevice device(armed, holds);
      Timed timed;
      timed.queues = true;
      timed.on_run = [&] {
        if (device.written.find('c') != std::string::npos) ++armed.queued;  // after warm-up
        device.written += 'r';
      };
      const SamplingLimits limits{
          .seconds = 0.1, .min_samples = 5, .max_samples = 5, .timing = Timing::armed};
      const Sampled sampled = Sampler(device, link, limits).sample(timed);
      EXPECT_FALSE(sampled.failure);
      EXPECT_EQ(sampled.unit.batch, 1);
      const std::string samples = device.written.substr(device.written.find("cer") - 1);
      EXPECT_EQ(samples.substr(0, 14), "scereosscereos") << samples;
      if (world.rank() != 0) return;
      EXPECT_EQ(sampled.unit.worst.empty(), !holds);
      EXPECT_EQ(sampled.unit.late > 0, !holds);
      for (const double time : sampled.unit.worst) EXPECT_EQ(time, 2);  // event, run, event
    });
    EXPECT_EQ(armed.opened_early, 0);
  }
}

TEST(Sampler, ArmedRejectsRunsThatItCannotHoldBack) {
  on_ranks(1, [](machine::World& world, machine::Link* link) {
    Timed timed;
    EXPECT_THROW(Sampler(world.device(), link, {.timing = Timing::armed}).sample(timed),
                 std::logic_error);
  });
}

TEST(ClockStart, ReportsTheLateRank) {
  on_ranks(2, [](machine::World& world, machine::Link* link) {
    ClockStart start(link, true);
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const ClockStart::Moment moment = start.wait();
    EXPECT_TRUE(world.rank() == 0 || moment.late);
  });
}

TEST(ClockStart, FindsTheOffsetOfAClock) {
  // Threads share a clock, so the offset found must be zero within its own uncertainty.
  on_ranks(3, [](machine::World& world, machine::Link* link) {
    ClockStart start(link, false);
    EXPECT_LE(std::abs(start.offset_s()), start.uncertainty_s() + 1e-9);
    EXPECT_LT(start.uncertainty_s(), 1.0);
    const double before = machine::steady_s();
    const ClockStart::Moment moment = start.wait();
    EXPECT_GE(machine::steady_s(), moment.start_s);
    EXPECT_GE(moment.start_s, before - 1);
    EXPECT_EQ(world.rank() == 0, start.uncertainty_s() == 0);
  });
}

TEST(Sampler, ShortRunsAreBatched) {
  on_ranks(1, [](machine::World& world, machine::Link* link) {
    Timed timed;
    int prepared = 0, runs = 0;
    timed.on_prepare = [&] { ++prepared; };
    timed.on_run = [&] {
      ++runs;
      wait_for(1e-6);
    };
    const Sampled sampled = Sampler(world.device(), link, {.seconds = 0.1}).sample(timed);
    EXPECT_GE(sampled.unit.batch, 10);
    EXPECT_LE(sampled.unit.batch, 22);
    EXPECT_GT(runs, 9 * prepared / 2);
    for (double time : sampled.unit.worst) EXPECT_GE(time, 1e-6);

    timed.can_repeat = false;
    prepared = runs = 0;
    const Sampled single = Sampler(world.device(), link, {.seconds = 0.1}).sample(timed);
    EXPECT_EQ(single.unit.batch, 1);
    EXPECT_EQ(runs, prepared);
  });
}

TEST(Sampler, YardstickAlternates) {
  on_ranks(2, [](machine::World& world, machine::Link* link) {
    Timed timed;
    std::string order;
    timed.on_run = [&] {
      wait_for(1e-4);
      if (order.empty() || order.back() != 'A') order += 'A';
    };
    timed.on_yardstick = [&] {
      wait_for(2e-4);
      if (order.back() != 'B') order += 'B';
    };
    const Sampled sampled = Sampler(world.device(), link, {.seconds = 0.2}).sample(timed);
    EXPECT_TRUE(order.starts_with("ABAB")) << order;  // warm-up, then blocks
    if (world.rank() != 0) return;
    EXPECT_GE(sampled.yardstick.worst.size(), 5u);
    const double ratio = median(sampled.yardstick.worst) / median(sampled.unit.worst);
    EXPECT_GT(ratio, 1.0);
  });
}

// Rank 1 enters an exchange 20 ms late. Rank 1 is busy for this time, and rank 0 waits.
TEST(Sampler, DistinguishesBusyFromWaitingRanks) {
  on_ranks(2, [](machine::World& world, machine::Link* link) {
    const auto exchange = machine::connect(world, world.group(), machine::Transport::shared_memory);
    Timed timed;
    int told = 0, expected = -1;
    timed.on_run = [&] {
      EXPECT_TRUE(told == expected || told == -1);
      expected = told + 1;
      if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      char mine = 0, theirs = 0;
      exchange->send(1 - world.rank(), &mine, 1);
      exchange->receive(1 - world.rank(), &theirs, 1);
    };
    const SamplingLimits limits{
        .seconds = 0.3, .min_samples = 5, .max_samples = 5, .sample = &told};
    const Sampled sampled = Sampler(world.device(), link, limits).sample(timed);
    EXPECT_EQ(told, 4);
    if (world.rank() != 0) return;
    ASSERT_EQ(sampled.unit.ranks[1].busy.size(), 5u);
    EXPECT_GT(median(sampled.unit.worst), 0.019);
    EXPECT_LT(quantiles(sampled.unit.ranks[0].busy).min, 0.01);
    EXPECT_GT(quantiles(sampled.unit.ranks[1].busy).min, 0.019);
  });
}

TEST(Sampler, AnExceptionOnOneRankEndsSamplingOnAll) {
  on_ranks(2, [](machine::World& world, machine::Link* link) {
    Timed timed;
    int prepared = 0, runs = 0;
    std::optional<machine::Failure> told;
    timed.on_prepare = [&] { ++prepared; };
    timed.on_run = [&] {
      wait_for(3e-5);
      if (++runs == 20 && world.rank() == 1) throw std::runtime_error("out of luck");
    };
    const auto on_failure = [&](const machine::Failure& failure) { told = failure; };
    const Sampled sampled =
        Sampler(world.device(), link, {.seconds = 10}, on_failure).sample(timed);
    EXPECT_TRUE(sampled.failed_somewhere);
    EXPECT_EQ(told, sampled.failure);
    EXPECT_EQ(runs, 20);      // no rank ran again
    EXPECT_LE(prepared, 21);  // and the warm-up ended
    EXPECT_EQ(sampled.failure ? sampled.failure->text : "", world.rank() == 1 ? "out of luck" : "");
  });
}

// The cost of a sample in addition to the unit's time, and the skew after the barrier. Both are
// printed. The bounds catch only gross errors, because the machine is shared.
TEST(Sampler, CostOfASample) {
  for (int ranks : {1, 2, 4}) {
    std::mutex mutex;
    std::vector<std::vector<double>> exits(static_cast<std::size_t>(ranks));
    on_ranks(ranks, [&](machine::World& world, machine::Link* link) {
      constexpr int samples = 2000;
      std::vector<double> left(samples);
      for (double& time : left) {
        barrier(link);
        time = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
                   .count();
      }
      Timed timed;
      timed.on_run = [] { wait_for(5e-5); };
      const auto begin = std::chrono::steady_clock::now();
      const Sampled sampled = Sampler(world.device(), link, {.seconds = 0.2}).sample(timed);
      const double elapsed =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      const std::lock_guard lock(mutex);
      exits[static_cast<std::size_t>(world.rank())] = left;
      if (world.rank() == 0) {
        EXPECT_LT(elapsed, 5);
        std::vector<double> intervals;
        for (int i = 1; i < samples; ++i)
          intervals.push_back(left[static_cast<std::size_t>(i)] -
                              left[static_cast<std::size_t>(i - 1)]);
        std::printf("%d ranks: barrier %.2f us, a run of 50 us timed as %.2f us (%d samples, %s)\n",
                    ranks, 1e6 * median(intervals), 1e6 * median(sampled.unit.worst),
                    sampled.unit.samples.iterations(), std::string(name(sampled.stop)).c_str());
      }
    });
    std::vector<double> skews;
    for (std::size_t i = 0; i < exits[0].size(); ++i) {
      std::vector<double> left;
      for (const auto& of_rank : exits) left.push_back(of_rank[i]);
      skews.push_back(std::ranges::max(left) - std::ranges::min(left));
    }
    std::printf("%d ranks: exit skew %.2f us (median), %.2f us (p95)\n", ranks,
                1e6 * quantiles(skews).median, 1e6 * quantiles(skews).p95);
  }
}

}  // namespace
}  // namespace harness
