#include "harness/judge/numerics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace harness {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

std::vector<double> random_values(std::size_t count) {
  std::mt19937_64 engine(7);
  std::normal_distribution<double> normal;
  std::vector<double> values(count);
  for (double& value : values) value = normal(engine);
  return values;
}

TEST(Gamma, GrowsWithTheOperations) {
  EXPECT_DOUBLE_EQ(gamma(2, 0.25), 1.0);
  EXPECT_EQ(gamma(0, 0x1p-24), 0);
  EXPECT_EQ(gamma(4, 0.25), infinity);
}

TEST(Elements, WorstIsTheElementNearestItsBound) {
  const std::vector<double> expected = random_values(37);
  std::vector<double> actual = expected, bounds(37, 1e-3);
  actual[5] += 9e-4;
  actual[11] += 5e-4;
  bounds[11] = 5.2e-4;
  const Comparison right = compare_elements(actual, expected, bounds);
  EXPECT_TRUE(right.right) << right.text;
  EXPECT_EQ(right.worst, 11u);
  EXPECT_EQ(right.bound, 5.2e-4);

  actual[30] += 2e-3;
  const Comparison wrong = compare_elements(actual, expected, bounds);
  EXPECT_FALSE(wrong.right);
  EXPECT_EQ(wrong.worst, 30u);
  EXPECT_NE(wrong.text.find("element 30"), std::string::npos) << wrong.text;
}

TEST(Elements, ZeroBoundRequiresEquality) {
  const std::vector<double> zero = {0.0}, least = {std::numeric_limits<double>::denorm_min()};
  EXPECT_TRUE(compare_elements(zero, zero, zero).right);
  EXPECT_FALSE(compare_elements(least, zero, zero).right);
}

TEST(Elements, NotANumberAndInfinityNeverPass) {
  const std::vector<double> one = {1.0};
  for (double bad : {nan, infinity, -infinity}) {
    const std::vector<double> odd = {bad};
    EXPECT_FALSE(compare_elements(odd, one, one).right);
    EXPECT_FALSE(compare_elements(one, odd, one).right);
    EXPECT_FALSE(compare_elements(odd, odd, one).right);
    EXPECT_FALSE(compare_elements(one, one, odd).right);
    EXPECT_FALSE(compare_norms(odd, odd, 1.0).right);
    EXPECT_FALSE(compare_norms(odd, one, 1.0).right);
    EXPECT_FALSE(compare_norms(one, one, bad).right);
    EXPECT_FALSE(compare_bits(odd, odd).right);
    EXPECT_FALSE(compare_error(bad, 1.0).right);
    EXPECT_FALSE(compare_error(0.0, bad).right);
  }
}

TEST(Elements, SizesMustAgree) {
  const std::vector<double> two = {1, 2}, three = {1, 2, 3};
  EXPECT_EQ(compare_elements(two, three, three).text, "2 elements, expected 3");
  EXPECT_FALSE(compare_elements(three, three, two).right);
  EXPECT_FALSE(compare_norms(two, three, 1).right);
  EXPECT_FALSE(compare_bits(three, two).right);
}

TEST(Norms, RelativeToTheReference) {
  std::vector<double> expected = {3, 4}, actual = {3, 4.5};
  const Comparison comparison = compare_norms(actual, expected, 0.1);  // 0.5 / 5
  EXPECT_TRUE(comparison.right);
  EXPECT_DOUBLE_EQ(comparison.error, 0.1);
  EXPECT_EQ(comparison.worst, 1u);
  EXPECT_FALSE(compare_norms(actual, expected, 0.0999).right);
}

TEST(Norms, ZeroReferenceRequiresZero) {
  const std::vector<double> zero = {0, 0}, small = {0, 1e-300};
  EXPECT_TRUE(compare_norms(zero, zero, 0).right);
  EXPECT_FALSE(compare_norms(small, zero, 0.5).right);
}

// float rounds sums as coarsely as stored values. bfloat16 does not, so the length of its sums
// hardly counts.
TEST(Norms, BoundOfANetworkCountsStoredAndSummedRoundings) {
  using machine::Dtype;
  EXPECT_DOUBLE_EQ(norm_bound(Dtype::float32, 1, 100), 4 * 1.03 * (2 + 10) * 0x1p-24);
  EXPECT_DOUBLE_EQ(norm_bound(Dtype::float64, 0, 400), 4 * (2 + 20) * 0x1p-53);
  EXPECT_NEAR(norm_bound(Dtype::bfloat16, 2, 1) / (4 * 1.0609 * 2 * 0x1p-8), 1, 1e-4);
}

TEST(Bits, SignOfZeroCounts) {
  const std::vector<double> plus = {1, 0.0}, minus = {1, -0.0};
  EXPECT_TRUE(compare_bits(plus, plus).right);
  const Comparison comparison = compare_bits(plus, minus);
  EXPECT_FALSE(comparison.right);
  EXPECT_NE(comparison.text.find("1 of 2 elements differ, first element 1"), std::string::npos)
      << comparison.text;
}

}  // namespace
}  // namespace harness
