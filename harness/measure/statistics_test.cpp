#include "harness/measure/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace harness {
namespace {

TEST(Statistics, QuantilesAreTypeSeven) {
  const std::vector<double> values = {40, 10, 30, 20};
  const Quantiles q = quantiles(values);
  EXPECT_EQ(q.min, 10);
  EXPECT_EQ(q.max, 40);
  EXPECT_EQ(q.median, 25);
  EXPECT_DOUBLE_EQ(q.p25, 17.5);  // R: quantile(c(10,20,30,40), 0.25)
  EXPECT_DOUBLE_EQ(q.p5, 11.5);
  EXPECT_DOUBLE_EQ(q.p95, 38.5);
  const std::vector<double> one = {3};
  EXPECT_EQ(quantiles(one).p95, 3);
}

TEST(Statistics, RanksOfTheMediansInterval) {
  const std::vector<std::pair<int, std::pair<int, int>>> known = {
      {6, {1, 6}}, {10, {2, 9}}, {20, {6, 15}}, {30, {10, 21}}, {50, {18, 33}}, {100, {40, 61}}};
  for (const auto& [n, ranks] : known) EXPECT_EQ(median_ranks(n), ranks) << n;
  for (int n = 0; n < 6; ++n) EXPECT_EQ(median_ranks(n), std::nullopt) << n;
  // For large n, the normal approximation holds: (n - 1.96 sqrt(n)) / 2.
  const auto many = median_ranks(10000);
  ASSERT_TRUE(many);
  EXPECT_NEAR(many->first, (10000 - 1.95996 * 100) / 2, 1.5);
}

// Every rank pair has at least the requested confidence, and no narrower pair has it.
TEST(Statistics, RanksAreTheNarrowest) {
  for (int n = 6; n <= 60; ++n) {
    std::vector<double> binomial(static_cast<std::size_t>(n) + 1,
                                 0.0);  // Pascal's triangle, in place
    binomial[0] = 1;
    for (int row = 1; row <= n; ++row)
      for (int k = row; k > 0; --k)
        binomial[static_cast<std::size_t>(k)] += binomial[static_cast<std::size_t>(k - 1)];
    const auto outside = [&](int r) {
      double sum = 0;
      for (int k = 0; k < r; ++k) sum += binomial[static_cast<std::size_t>(k)];
      return 2 * sum / std::pow(2.0, n);
    };
    const auto ranks = median_ranks(n);
    ASSERT_TRUE(ranks);
    EXPECT_LE(outside(ranks->first), 0.05) << n;
    EXPECT_GT(outside(ranks->first + 1), 0.05) << n;
    EXPECT_EQ(ranks->first + ranks->second, n + 1);
  }
}

TEST(Statistics, Autocorrelation) {
  const std::vector<double> alternating = {1, -1, 1, -1};
  EXPECT_DOUBLE_EQ(lag1_autocorrelation(alternating), -0.75);
  const std::vector<double> ramp = {1, 2, 3, 4};  // (-1.5*-.5 + -.5*.5 + .5*1.5) / 5
  EXPECT_DOUBLE_EQ(lag1_autocorrelation(ramp), 0.25);
  const std::vector<double> constant(30, 1e-3);  // its sum is not 30 times its value
  EXPECT_EQ(lag1_autocorrelation(constant), 0);
  EXPECT_DOUBLE_EQ(effective_samples(90, 0.5), 30);
  EXPECT_EQ(effective_samples(90, -0.5), 90);
  EXPECT_EQ(effective_samples(90, 1), 0);
}

// Fraction of 4000 trials whose interval holds the true median 1 of exp(sigma z), z an AR(1)
// process.
double coverage(int n, double phi, bool corrected) {
  std::mt19937_64 engine(20240517);
  std::normal_distribution<double> normal;
  constexpr int trials = 4000;
  int covered = 0;
  for (int trial = 0; trial < trials; ++trial) {
    std::vector<double> values(static_cast<std::size_t>(n));
    double z = normal(engine);
    for (double& value : values) {
      value = std::exp(0.05 * z);
      z = phi * z + std::sqrt(1 - phi * phi) * normal(engine);
    }
    std::optional<Interval> interval;
    if (corrected) {
      interval = median_interval(values);
    } else {
      const auto ranks = median_ranks(n);
      std::vector<double> sorted = values;
      std::sort(sorted.begin(), sorted.end());
      interval = Interval{sorted[static_cast<std::size_t>(ranks->first - 1)],
                          sorted[static_cast<std::size_t>(ranks->second - 1)]};
    }
    covered += interval && interval->low <= 1 && 1 <= interval->high;
  }
  return static_cast<double>(covered) / trials;
}

TEST(Statistics, IntervalCoversIndependentSamples) {
  // Exact: 95.7 % for n = 30, 96.5 % for n = 100.
  for (int n : {30, 100}) {
    EXPECT_GE(coverage(n, 0, false), 0.93) << n;
    EXPECT_LE(coverage(n, 0, false), 0.97) << n;
    EXPECT_GE(coverage(n, 0, true), 0.93) << n;  // wider if a correlation appears by chance
  }
}

TEST(Statistics, IntervalIsWidenedForCorrelatedSamples) {
  EXPECT_LT(coverage(200, 0.8, false), 0.70);
  EXPECT_GE(coverage(200, 0.8, true), 0.93);
}

TEST(Statistics, TooFewSamplesHaveNoInterval) {
  const std::vector<double> five = {1, 2, 3, 2, 1};
  EXPECT_FALSE(median_interval(five));
}

TEST(Statistics, RobustZByHand) {
  // Median 3, absolute deviations 2 1 0 1 97, their median 1.
  const std::vector<double> values = {1, 2, 3, 4, 100};
  const std::vector<double> z = robust_z(values, values, 0);
  ASSERT_EQ(z.size(), 5u);
  EXPECT_DOUBLE_EQ(z[0], -2 / 1.4826);
  EXPECT_DOUBLE_EQ(z[2], 0);
  EXPECT_DOUBLE_EQ(z[4], 97 / 1.4826);
  // The floor of half the median is 1.5, which exceeds 1.4826.
  EXPECT_DOUBLE_EQ(robust_z(values, values, 0.5)[4], 97 / 1.5);
}

TEST(Statistics, NearlyEqualValuesHaveNoOutlier) {
  // Without a floor, the last value would be infinitely many deviations away.
  const std::vector<double> values = {10, 10, 10, 10, 10, 10.1};
  EXPECT_DOUBLE_EQ(robust_z(values, values, 0.05).back(), (10.1 - 10) / 0.5);
  EXPECT_LT(robust_z(values, values, 0.05).back(), outlying_z);
  EXPECT_TRUE(robust_z({}, {}, 0.05).empty());
}

// Outliers are found even if they are a third of the values. Mean and deviation would miss them.
TEST(Statistics, OutliersDoNotHideEachOther) {
  std::vector<double> values(12, 10);
  for (std::size_t i = 0; i < 4; ++i) values[i] = 30;
  const std::vector<double> z = robust_z(values, values, 0.05);
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(z[i] > outlying_z, i < 4) << i;
}

}  // namespace
}  // namespace harness
