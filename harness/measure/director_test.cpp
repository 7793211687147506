#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "harness/measure/sampler.h"

namespace harness {
namespace {

// Feeds a Director with sample times from `draw`, and counts the samples.
struct Simulated {
  Stop stop = Stop::no;
  int unit = 0, yardstick = 0, blocks = 0;
  double unit_s = 0, yardstick_s = 0;
};
template <class Draw>
Simulated simulate(SamplingLimits limits, Draw draw, double yardstick_time = 0) {
  Director director(limits, draw(), yardstick_time);
  Simulated result;
  while (true) {
    const Director::Order order = director.next();
    if (order.unit == 0 && order.yardstick == 0) {
      result.stop = order.stop;
      return result;
    }
    ++result.blocks;
    std::vector<double> times(static_cast<std::size_t>(order.unit));
    double elapsed = 0;
    for (double& time : times) elapsed += time = draw();
    director.add(Runner::unit, times, elapsed);
    result.unit += order.unit;
    result.unit_s += elapsed;
    const std::vector<double> library(static_cast<std::size_t>(order.yardstick), yardstick_time);
    director.add(Runner::yardstick, library, order.yardstick * yardstick_time);
    result.yardstick += order.yardstick;
    result.yardstick_s += order.yardstick * yardstick_time;
  }
}

TEST(Director, SteadyTimesConvergeAtTheMinimum) {
  const Simulated result = simulate({}, [] { return 1e-3; });
  EXPECT_EQ(result.stop, Stop::converged);
  EXPECT_EQ(result.unit, 30);
}

TEST(Director, NoisyTimesNeedMoreSamples) {
  std::mt19937_64 engine(3);
  std::normal_distribution<double> normal;
  const Simulated result =
      simulate({.seconds = 10}, [&] { return 1e-3 * std::exp(0.05 * normal(engine)); });
  EXPECT_EQ(result.stop, Stop::converged);
  // (1.96 * 1.2533 * 5 % / 1 %)^2 = 151 independent samples.
  EXPECT_GT(result.unit, 75);
  EXPECT_LT(result.unit, 600);
  EXPECT_LT(result.blocks, 15);
}

TEST(Director, StopsAtTheCaps) {
  std::mt19937_64 engine(3);
  std::uniform_real_distribution<double> wild(1e-3, 9e-3);
  const Simulated timed = simulate({.seconds = 0.4}, [&] { return wild(engine); });
  EXPECT_EQ(timed.stop, Stop::time_cap);
  EXPECT_GE(timed.unit_s, 0.4);
  EXPECT_LT(timed.unit_s, 0.6);
  const Simulated counted =
      simulate({.seconds = 1e9, .max_samples = 200}, [&] { return wild(engine); });
  EXPECT_EQ(counted.stop, Stop::sample_cap);
  EXPECT_EQ(counted.unit, 200);
}

TEST(Director, LongRunsStopEarlyWithTheTimeCap) {
  const Simulated seconds = simulate({.seconds = 1}, [] { return 1.2; });
  EXPECT_EQ(seconds.stop, Stop::time_cap);
  EXPECT_EQ(seconds.unit, 3);
  const Simulated minutes = simulate({.seconds = 1}, [] { return 60.0; });
  EXPECT_EQ(minutes.unit, 1);
}

TEST(Director, AUnitCanDemandSamplesOfAnyLength) {
  const Simulated minutes = simulate(
      {.seconds = 1, .least_samples = 5}, [] { return 60.0; }, 45);
  EXPECT_EQ(minutes.stop, Stop::time_cap);
  EXPECT_EQ(minutes.unit, 5);
  EXPECT_EQ(minutes.yardstick, 5);
}

TEST(Director, YardstickTakesItsShare) {
  std::mt19937_64 engine(3);
  std::uniform_real_distribution<double> wild(1e-3, 9e-3);
  const Simulated both = simulate(
      {.seconds = 3}, [&] { return wild(engine); }, 4e-3);
  EXPECT_GE(both.yardstick, 30);
  EXPECT_LE(both.yardstick_s, 1.2);
  EXPECT_GE(both.unit_s, 1.9);
  // A slow library is sampled only five times, regardless of the needs of the unit.
  const Simulated slow = simulate(
      {.seconds = 1}, [] { return 1e-3; }, 0.1);
  EXPECT_EQ(slow.stop, Stop::converged);
  EXPECT_EQ(slow.yardstick, 5);
}

TEST(Director, ShortTimesMayBeLessPrecise) {
  EXPECT_EQ(wanted_precision(5e-6), 0.02);
  EXPECT_EQ(wanted_precision(1e-3), 0.01);
}

}  // namespace
}  // namespace harness
