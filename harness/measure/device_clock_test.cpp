// Samples on a GPU, whose clock differs from the host's.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>

#include "harness/measure/sampler.h"
#include "machine/device/kernels.h"
#include "machine/link/connect.h"

namespace harness {
namespace {

class ClockEvent final : public machine::Event {
 public:
  explicit ClockEvent(double at_s) : at_s_(at_s) {}
  void synchronize() override {}
  double seconds_since(const Event& earlier) const override {
    return at_s_ - dynamic_cast<const ClockEvent&>(earlier).at_s_;
  }

 private:
  double at_s_;
};

// A stream whose events show a clock of the test.
class ClockStream final : public machine::Stream {
 public:
  ClockStream(machine::Device& device, double& now_s, double record_s)
      : Stream(device, nullptr), now_s_(now_s), record_s_(record_s) {}
  void copy(void*, const void*, std::size_t) override {}
  std::unique_ptr<machine::Event> record() override {
    now_s_ += record_s_;
    return std::make_unique<ClockEvent>(now_s_);
  }
  void wait(const machine::Event&) override {}
  void synchronize() override {}

 private:
  double& now_s_;
  double record_s_;
};

class ClockGpu final : public machine::Device {
 public:
  // record_s: time that an event takes.
  explicit ClockGpu(double record_s = 0) : Device(Kind::cuda), record_s_(record_s) {
    stream_ = make_stream();
  }
  double now_s = 0;
  std::string description() const override { return "a clock"; }
  std::unique_ptr<machine::Stream> make_stream() override {
    return std::make_unique<ClockStream>(*this, now_s, record_s_);
  }

 private:
  double record_s_;
  void* do_allocate(std::size_t bytes) override { return std::malloc(bytes); }
  void do_free(void* data, std::size_t) override { std::free(data); }
};

class Work : public Instance {
 public:
  std::function<void()> on_run = [] {};
  bool queues = true;
  void prepare() override {}
  void run() override { on_run(); }
  bool repeatable() const override { return true; }
  int least_samples() const override { return 0; }
  bool only_queues() const override { return queues; }
  bool has_yardstick() const override { return false; }
  void yardstick() override {}
  bool has_check() const override { return false; }
  void rehearse(Runner) override {}
  std::optional<machine::Failure> check(Runner) override { return std::nullopt; }
  void judge(Judge&) override {}
  Cost cost() const override { return {}; }
  void describe(Description&) override {}
};

void sleep_ms(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

TEST(DeviceClock, TimesUnitsThatOnlyQueue) {
  ClockGpu gpu;
  Work work;
  work.on_run = [&] { gpu.now_s += 1e-4; };
  const Sampled sampled = Sampler(gpu, nullptr, {.seconds = 0.1}).sample(work);
  EXPECT_EQ(sampled.unit.batch, 20);
  ASSERT_FALSE(sampled.unit.worst.empty());
  ASSERT_EQ(sampled.unit.device.size(), sampled.unit.worst.size());
  ASSERT_EQ(sampled.unit.host.size(), sampled.unit.worst.size());
  for (const double time : sampled.unit.worst) EXPECT_NEAR(time, 1e-4, 1e-9);
  EXPECT_EQ(sampled.unit.device, sampled.unit.worst);
  EXPECT_LT(std::ranges::min(sampled.unit.host), 1e-4) << "the host only queues";
  EXPECT_GT(std::ranges::min(sampled.unit.host), 0);
}

// Twenty runs of a long one would exceed the case's time, and one is enough for the clock.
TEST(DeviceClock, DoesNotRepeatLongRuns) {
  ClockGpu gpu;
  Work work;
  work.on_run = [&] { gpu.now_s += 1; };
  const Sampled sampled = Sampler(gpu, nullptr, {.seconds = 0.01}).sample(work);
  EXPECT_EQ(sampled.unit.batch, 1);
  EXPECT_NEAR(sampled.unit.worst.at(0), 1, 1e-9);
}

// As an all-gather on one rank. Any number of such runs takes the time between two events.
TEST(DeviceClock, EndsWarmUpOfRunsThatQueueNothing) {
  ClockGpu gpu(1e-6);
  Work work;
  std::int64_t runs = 0;
  work.on_run = [&] { ++runs; };
  const Sampled sampled = Sampler(gpu, nullptr, {.seconds = 1e-6}).sample(work);
  EXPECT_EQ(sampled.unit.batch, 1 << 16) << "the most that there is";
  const std::int64_t warm_up = runs - sampled.unit.samples.iterations() * sampled.unit.batch;
  EXPECT_LT(warm_up, 3 << 16) << "it grows by factors";
}

// A unit that waits for the host is timed by it, but the record has both times.
TEST(DeviceClock, StandsBesideTheHostsForOtherUnits) {
  ClockGpu gpu;
  Work work;
  work.queues = false;
  work.on_run = [&] {
    gpu.now_s += 1e-4;
    sleep_ms(2);
  };
  const Sampled sampled = Sampler(gpu, nullptr, {.seconds = 0.05}).sample(work);
  EXPECT_EQ(sampled.unit.batch, 1);
  EXPECT_EQ(sampled.unit.host, sampled.unit.worst);
  EXPECT_GE(std::ranges::min(sampled.unit.host), 2e-3);
  for (const double time : sampled.unit.device) EXPECT_NEAR(time, 1e-4, 1e-9);
}

TEST(DeviceClock, ShowsTheSlowGpu) {
  machine::run_ranks(2, [](machine::World& world) {
    const auto link = machine::connect(world, world.group(), machine::Transport::shared_memory);
    ClockGpu gpu;
    Work work;
    // The host of the fast GPU is slow.
    work.on_run = [&] {
      gpu.now_s += world.rank() == 1 ? 2e-2 : 1e-2;
      if (world.rank() == 0) sleep_ms(1);
    };
    const Sampled sampled = Sampler(gpu, link.get(), {.seconds = 0.1}).sample(work);
    if (world.rank() != 0) return;
    ASSERT_EQ(sampled.unit.ranks.size(), 2u);
    for (const double busy : sampled.unit.ranks[0].busy) EXPECT_NEAR(busy, 1e-2, 1e-9);
    for (const double busy : sampled.unit.ranks[1].busy) EXPECT_NEAR(busy, 2e-2, 1e-9);
    for (const double time : sampled.unit.worst) EXPECT_NEAR(time, 2e-2, 1e-9);
  });
}

TEST(DeviceClock, IsAbsentOnAHost) {
  const auto host = machine::make_host_device();
  Work work;
  work.queues = false;
  work.on_run = [] { sleep_ms(1); };
  const Sampled sampled = Sampler(*host, nullptr, {.seconds = 0.02}).sample(work);
  EXPECT_TRUE(sampled.unit.device.empty());
  EXPECT_TRUE(sampled.unit.host.empty());
}

}  // namespace
}  // namespace harness
