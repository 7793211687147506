#include "harness/compare/rank_tests.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>
#include <random>

namespace harness {
namespace {

using Values = std::vector<double>;

// Returns the exact p: the fraction of all choices of m values with a rank sum at least as far from
// the mean as observed.
double counted_p(const Values& base, const Values& next) {
  Values all = base;
  all.insert(all.end(), next.begin(), next.end());
  const auto rank_of = [&](double value) {  // mid-rank
    double below = 0, equal = 0;
    for (const double other : all) {
      below += other < value;
      equal += other == value;
    }
    return below + (equal + 1) / 2;
  };
  const double mean = static_cast<double>(next.size()) * static_cast<double>(all.size() + 1) / 2;
  double observed = 0;
  for (const double value : next) observed += rank_of(value);
  double as_far = 0, choices = 0;
  for (unsigned chosen = 0; chosen < 1u << all.size(); ++chosen) {
    if (std::popcount(chosen) != static_cast<int>(next.size())) continue;
    double sum = 0;
    for (std::size_t i = 0; i < all.size(); ++i)
      if (chosen >> i & 1) sum += rank_of(all[i]);
    ++choices;
    as_far += std::abs(sum - mean) >= std::abs(observed - mean);
  }
  return as_far / choices;
}

// The values are the ranks 1 to n + m. U counts the pairs in which the base value is larger.
TEST(MannWhitney, TablesOfSmallSamples) {
  // Number of arrangements with U = 0, 1, 2, …: 1 1 2 3 3 3 3 2 1 1 of 20; 1 1 2 3 5 … of 70.
  EXPECT_DOUBLE_EQ(mann_whitney(Values{1, 2, 3}, Values{4, 5, 6}).p, 2 / 20.0);
  EXPECT_DOUBLE_EQ(mann_whitney(Values{1, 2, 4}, Values{3, 5, 6}).p, 4 / 20.0);
  EXPECT_DOUBLE_EQ(mann_whitney(Values{1, 3, 4}, Values{2, 5, 6}).p, 8 / 20.0);
  EXPECT_DOUBLE_EQ(mann_whitney(Values{4, 5, 6}, Values{1, 2, 3}).p, 2 / 20.0);
  EXPECT_DOUBLE_EQ(mann_whitney(Values{1, 2, 3, 4}, Values{5, 6, 7, 8}).p, 2 / 70.0);
  EXPECT_DOUBLE_EQ(mann_whitney(Values{1, 2, 4, 5}, Values{3, 6, 7, 8}).p, 8 / 70.0);
  EXPECT_DOUBLE_EQ(mann_whitney(Values{1, 4}, Values{2, 3}).p, 1);
  // The mid-ranks of 1 1 2 2 are 1.5 and 3.5. Two of the six choices have sums (3 and 7) as far
  // from 5.
  EXPECT_DOUBLE_EQ(mann_whitney(Values{1, 1}, Values{2, 2}).p, 2 / 6.0);
  EXPECT_DOUBLE_EQ(mann_whitney(Values{5, 5, 5}, Values{5, 5}).p, 1);
  EXPECT_DOUBLE_EQ(mann_whitney(Values{}, Values{1}).p, 1);
}

TEST(MannWhitney, TiesMatchTheEnumeration) {
  std::mt19937_64 engine(20240611);
  for (int trial = 0; trial < 150; ++trial) {
    std::uniform_int_distribution<int> size(1, 5), value(0, trial % 9 + 1);
    Values base(static_cast<std::size_t>(size(engine))),
        next(static_cast<std::size_t>(size(engine)));
    for (Values* side : {&base, &next})
      for (double& one : *side) one = value(engine);
    const MannWhitney test = mann_whitney(base, next);
    EXPECT_TRUE(test.exact);
    EXPECT_DOUBLE_EQ(test.p, counted_p(base, next)) << trial;
  }
}

// Returns p of the usual normal approximation, computed from pairs instead of ranks. The variance
// of U is corrected for ties, and the continuity correction is half a pair.
double normal_p(const Values& base, const Values& next) {
  const double n = static_cast<double>(base.size()), m = static_cast<double>(next.size());
  double u = 0;
  for (const double after : next)
    for (const double before : base) u += after > before ? 1 : after == before ? 0.5 : 0;
  std::map<double, double> times;
  for (const Values* side : {&base, &next})
    for (const double value : *side) ++times[value];
  double ties = 0;
  for (const auto& [value, t] : times) ties += t * t * t - t;
  const double variance = n * m / 12 * (n + m + 1 - ties / ((n + m) * (n + m - 1)));
  return std::erfc((std::abs(u - n * m / 2) - 0.5) / std::sqrt(2 * variance));
}

TEST(MannWhitney, ApproximatesBeyondTheExactLimit) {
  for (const double step : {0.1, 1.0}) {  // ties of three values, and fewer ties
    Values base, next;
    for (int i = 0; i < 28; ++i) {
      base.push_back(std::floor(i * step * 3));
      next.push_back(std::floor((i + 3) * step * 3));
    }
    const MannWhitney exact = mann_whitney(base, next);
    EXPECT_TRUE(exact.exact);
    EXPECT_NEAR(normal_p(base, next) / exact.p, 1, 0.05) << exact.p;
    next.push_back(2);
    const MannWhitney normal = mann_whitney(base, next);
    EXPECT_FALSE(normal.exact);
    EXPECT_NEAR(normal.p, normal_p(base, next), 1e-12);
  }
  EXPECT_EQ(mann_whitney(Values(30, 2.0), Values(30, 2.0)).p, 1);
}

TEST(MannWhitney, LeastPAndTheRequiredValues) {
  EXPECT_DOUBLE_EQ(least_p(3, 3), 0.1);
  EXPECT_DOUBLE_EQ(least_p(9, 9), 2 / 48620.0);
  EXPECT_DOUBLE_EQ(least_p(2, 5), 2 / 21.0);
  EXPECT_EQ(least_p(1, 1), 1);
  EXPECT_EQ(values_needed(0.05), 4);
  EXPECT_EQ(values_needed(0.05 / 1215), 9);
  EXPECT_EQ(values_needed(0.05 / 1216), 10);
  EXPECT_EQ(values_needed(0.05 / 4618), 10);
}

TEST(Shift, EstimateIsTheMedianOfAllDifferences) {
  EXPECT_DOUBLE_EQ(Shift(Values{1, 2, 3}, Values{4, 6}).estimate(), 3);  // 1 2 3 3 4 5
  EXPECT_DOUBLE_EQ(Shift(Values{4, 6}, Values{1, 2, 3}).estimate(), -3);
  EXPECT_DOUBLE_EQ(Shift(Values{1}, Values{2, 7}).estimate(), 3.5);
}

// Each difference equals its position from 0, so an end of the interval shows its position. The
// position from 1 is one more than the largest U that the usual tables reject at 5 %.
TEST(Shift, IntervalMatchesTheTables) {
  const auto critical = [](int n, int m, double level) {
    Values base, next;
    for (int i = 0; i < n; ++i) base.push_back(-i);
    for (int j = 0; j < m; ++j) next.push_back(j * n);
    const auto interval = Shift(base, next).interval(level);
    if (!interval) return -1;
    EXPECT_EQ(interval->low + interval->high, n * m - 1);
    return static_cast<int>(interval->low);
  };
  EXPECT_EQ(critical(3, 3, 0.05), -1);
  EXPECT_EQ(critical(4, 4, 0.05), 0);
  EXPECT_EQ(critical(5, 5, 0.05), 2);
  EXPECT_EQ(critical(8, 8, 0.05), 13);
  EXPECT_EQ(critical(9, 9, 0.05), 17);
  EXPECT_EQ(critical(10, 10, 0.05), 23);
  EXPECT_EQ(critical(20, 20, 0.05), 127);
  EXPECT_EQ(critical(10, 10, 0.01), 16);
  EXPECT_EQ(critical(3, 8, 0.05), 2);
  // For the approximation, 1/2 nm - 1.96 sqrt(nm (n + m + 1) / 12) is 341.3.
  EXPECT_NEAR(critical(31, 31, 0.05), 340, 2);
}

// The interval contains exactly the shifts that the test does not reject.
TEST(Shift, IntervalInvertsTheTest) {
  std::mt19937_64 engine(20240612);
  std::normal_distribution<double> normal;
  for (const auto& [n, m] : {std::pair{4, 4}, {5, 7}, {9, 9}, {3, 12}}) {
    Values base, next;
    for (int i = 0; i < n; ++i) base.push_back(normal(engine));
    for (int j = 0; j < m; ++j) next.push_back(normal(engine) + 1);
    const auto interval = Shift(base, next).interval(0.05);
    ASSERT_TRUE(interval);
    const auto p_after = [&](double shift) {
      Values moved = next;
      for (double& value : moved) value -= shift;
      return mann_whitney(base, moved).p;
    };
    EXPECT_GT(p_after(interval->low + 1e-9), 0.05);
    EXPECT_LE(p_after(interval->low - 1e-9), 0.05);
    EXPECT_GT(p_after(interval->high - 1e-9), 0.05);
    EXPECT_LE(p_after(interval->high + 1e-9), 0.05);
  }
}

TEST(Shift, IntervalCoversAlsoWithTies) {
  std::mt19937_64 engine(20240613);
  for (const double grain : {1e-9, 0.5}) {  // almost no ties; mostly ties
    std::normal_distribution<double> normal;
    const auto draw = [&] { return std::round(normal(engine) / grain) * grain; };
    constexpr int trials = 3000;
    int covered = 0;
    for (int trial = 0; trial < trials; ++trial) {
      Values base(7), next(7);
      for (double& value : base) value = draw();
      for (double& value : next) value = draw() + 3;
      const auto interval = Shift(base, next).interval(0.05);
      covered += interval->low <= 3 && 3 <= interval->high;
    }
    // At most 5 % lie outside, plus three standard deviations of 3000 trials.
    EXPECT_GE(covered, trials * 0.95 - 3 * std::sqrt(trials * 0.05 * 0.95)) << grain;
  }
}

// The example of Benjamini and Hochberg: four of fifteen at 5 %. Bonferroni's method has three.
TEST(BenjaminiHochberg, PublishedExample) {
  const Values p = {0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344,
                    0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0000};
  const Values q = benjamini_hochberg(p);
  for (std::size_t i = 0; i < p.size(); ++i) EXPECT_EQ(q[i] <= 0.05, i < 4) << i;
  EXPECT_DOUBLE_EQ(q[0], 15 * 0.0001);
  EXPECT_DOUBLE_EQ(q[5], 15 * 0.0298 / 7);  // not larger than the q of a larger p
}

TEST(BenjaminiHochberg, AcceptsAnyOrderAndNoValues) {
  const Values q = benjamini_hochberg(Values{0.04, 0.01, 0.03});
  EXPECT_DOUBLE_EQ(q[0], 0.04);
  EXPECT_DOUBLE_EQ(q[1], 0.03);
  EXPECT_DOUBLE_EQ(q[2], 0.04);
  EXPECT_TRUE(benjamini_hochberg({}).empty());
}

}  // namespace
}  // namespace harness
