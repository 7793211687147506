// The fractions of the rule, its edges, and its independence of all but seed, index and position.

#include "suite/trainer/tokens/encoder_examples.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

namespace suite {
namespace {

constexpr int vocabulary = 1000;

struct Example {
  std::vector<std::int32_t> original, tokens, targets, types;
  int length = 0;
};

Example example(std::uint64_t seed, std::uint64_t index, std::size_t size) {
  Example made{std::vector<std::int32_t>(size),
               {},
               std::vector<std::int32_t>(size, 7),
               std::vector<std::int32_t>(size, 7)};
  std::iota(made.original.begin(), made.original.end(), 1);
  made.tokens = made.original;
  made.length = mask_tokens(seed, index, vocabulary, {made.tokens, made.targets, made.types});
  return made;
}

TEST(MaskedTokens, HaveTheFractionsOfThePaper) {
  double kept = 0, masked = 0, other = 0, all = 0;
  for (std::uint64_t index = 0; index < 400; ++index) {
    const Example one = example(3, index, 128);
    ASSERT_GT(2 * one.length, 128);
    ASSERT_LE(one.length, 128);
    for (std::size_t i = 0; i < one.tokens.size(); ++i) {
      if (i >= static_cast<std::size_t>(one.length)) {
        ASSERT_EQ(one.tokens[i], 0);
        ASSERT_EQ(one.targets[i], -1);
        ASSERT_EQ(one.types[i], 0);
        continue;
      }
      if (i > 0) {
        ASSERT_GE(one.types[i], one.types[i - 1]);
      }
      if (i > 0) ++all;
      if (one.targets[i] < 0) {
        ASSERT_EQ(one.tokens[i], one.original[i]);
        continue;
      }
      ASSERT_EQ(one.targets[i], one.original[i]);
      if (i == 0) continue;
      ++(one.tokens[i] == one.original[i]  ? kept
         : one.tokens[i] == vocabulary - 1 ? masked
                                           : other);
    }
  }
  const double chosen = kept + masked + other;
  // Five standard deviations of a binomial distribution.
  const auto expect_fraction = [](double part, double whole, double fraction) {
    EXPECT_NEAR(part / whole, fraction, 5 * std::sqrt(fraction * (1 - fraction) / whole));
  };
  expect_fraction(chosen, all, 0.15);
  expect_fraction(masked, chosen, 0.8);
  expect_fraction(kept, chosen, 0.1);
}

TEST(MaskedTokens, TheFirstTokenAlwaysCounts) {
  for (const std::size_t size : {std::size_t{1}, std::size_t{2}, std::size_t{3}})
    for (std::uint64_t index = 0; index < 20; ++index) {
      const Example one = example(5, index, size);
      EXPECT_GE(one.length, 1);
      EXPECT_EQ(one.targets.front(), one.original.front());
    }
}

TEST(MaskedTokens, DependOnSeedAndIndex) {
  const Example one = example(1, 4, 64);
  EXPECT_EQ(one.tokens, example(1, 4, 64).tokens);
  EXPECT_NE(one.tokens, example(1, 5, 64).tokens);
  EXPECT_NE(one.tokens, example(2, 4, 64).tokens);
}

}  // namespace
}  // namespace suite
