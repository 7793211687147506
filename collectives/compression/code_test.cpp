#include "collectives/compression/code.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "collectives/compression/int_block.h"
#include "collectives/compression/one_bit.h"
#include "collectives/compression/wire_dtype.h"

namespace collectives {
namespace {

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr double u = 0x1p-24;

struct Coded {
  std::vector<float> decoded, rest;
};

Coded through(const Code& code, const std::vector<float>& values) {
  const auto count = std::ssize(values);
  std::vector<std::byte> bytes(static_cast<std::size_t>(code.bytes(count)) + 1, std::byte{0x5a});
  Coded coded{std::vector<float>(values.size()), values};
  code.encode(coded.rest.data(), count, bytes.data());
  EXPECT_EQ(bytes.back(), std::byte{0x5a}) << "wrote beyond its bytes";
  const std::byte* start = bytes.data();
  code.decode_sum({&start, 1}, count, coded.decoded.data());
  return coded;
}

std::vector<float> random_values(std::int64_t count) {
  std::mt19937 generator(11);
  std::normal_distribution<float> distribution;
  std::uniform_int_distribution<int> exponents(-20, 8);
  int exponent = 0;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    if (i % 256 == 0) exponent = exponents(generator);
    values[static_cast<std::size_t>(i)] = std::ldexp(distribution(generator), exponent);
  }
  return values;
}

template <class T>
class IntBlockOf : public testing::Test {};
using IntBlocks = testing::Types<Int8Block, Int4Block>;
TYPED_TEST_SUITE(IntBlockOf, IntBlocks);

TYPED_TEST(IntBlockOf, IsWithinHalfAStepAndKeepsTheRest) {
  for (const std::int64_t count : {1, 255, 256, 257, 1009}) {
    const std::vector<float> values = random_values(count);
    const Coded coded = through(TypeParam(), values);
    double most_of_bound = 0;
    for (std::int64_t begin = 0; begin < count; begin += 256) {
      double largest = 0;
      const std::int64_t end = std::min(count, begin + 256);
      for (std::int64_t i = begin; i < end; ++i)
        largest = std::max(largest, std::abs(double{values[static_cast<std::size_t>(i)]}));
      const double scale = largest / TypeParam::levels;
      const double bound = scale * (0.5 + TypeParam::levels * 4 * u);
      for (std::int64_t i = begin; i < end; ++i) {
        const double value = values[static_cast<std::size_t>(i)];
        const double decoded = coded.decoded[static_cast<std::size_t>(i)];
        const double rest = coded.rest[static_cast<std::size_t>(i)];
        ASSERT_LE(std::abs(value - decoded), bound) << i << " of " << count;
        // Decoding rounds the product and the difference, separately or together.
        ASSERT_LE(std::abs(value - decoded - rest), 2 * u * (std::abs(decoded) + std::abs(rest)));
        most_of_bound = std::max(most_of_bound, std::abs(value - decoded) / bound);
      }
    }
    if (count > 100) {
      EXPECT_GT(most_of_bound, 0.9);  // otherwise the bound is loose
    }
  }
}

TYPED_TEST(IntBlockOf, SendsZerosForZeroAndTheSmallestValues) {
  for (const float tiny : {0.0f, 0x1p-149f, -0x1p-120f}) {
    const Coded coded = through(TypeParam(), std::vector<float>(300, tiny));
    EXPECT_EQ(coded.decoded, std::vector<float>(300, 0.0f)) << tiny;
    EXPECT_EQ(coded.rest, std::vector<float>(300, tiny)) << tiny;
  }
  const Coded least = through(TypeParam(), {0x1p-119f, 0x1p-121f});
  EXPECT_EQ(least.decoded[0], 0x1p-119f);
  const float almost = std::nextafter(0x1p127f, 0.0f);
  const Coded largest = through(TypeParam(), {almost, 1});
  EXPECT_NEAR(largest.decoded[0] / almost, 1, 4 * u);
}

TYPED_TEST(IntBlockOf, TurnsANonFiniteBlockIntoNan) {
  for (const float bad : {inf, -inf, std::numeric_limits<float>::quiet_NaN(), 0x1p127f}) {
    std::vector<float> values(700, 1.0f);
    values[300] = bad;
    const Coded coded = through(TypeParam(), values);
    for (std::size_t i = 0; i < 700; ++i) {
      EXPECT_EQ(std::isnan(coded.decoded[i]), i >= 256 && i < 512) << i;
      if (i >= 256 && i < 512) {
        EXPECT_EQ(coded.rest[i], 0.0f) << i;
      }
    }
  }
}

TEST(IntBlock, CountsAScaleForEachBlock) {
  EXPECT_EQ(Int8Block().bytes(0), 0);
  EXPECT_EQ(Int8Block().bytes(1), 5);
  EXPECT_EQ(Int8Block().bytes(256), 260);
  EXPECT_EQ(Int8Block().bytes(257), 265);
  EXPECT_EQ(Int4Block().bytes(0), 0);
  EXPECT_EQ(Int4Block().bytes(257), 128 + 4 + 1 + 4);
}

TEST(OneBit, SendsSignsAndTheRootOfTheMeanSquare) {
  const Coded coded = through(OneBit(), {3, -1, 0, -0.0f, 5, -5, 2, 0, 0, -0.0f, 0});
  const float scale = std::sqrt(64.0f / 11);
  const std::vector<float> decoded{scale, -scale, scale, scale, scale, -scale,
                                   scale, scale,  scale, scale, scale};
  EXPECT_EQ(coded.decoded, decoded);
  EXPECT_EQ(coded.rest[0], 3 - scale);
  EXPECT_EQ(coded.rest[1], -1 + scale);
  EXPECT_EQ(coded.rest[10], -scale);
}

TEST(OneBit, KeepsTheRestOfLongTensors) {
  const std::vector<float> values = random_values(2503);
  const Coded coded = through(OneBit(), values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(std::signbit(coded.decoded[i]), values[i] < 0) << i;
    ASSERT_EQ(coded.rest[i], values[i] - coded.decoded[i]) << i;
  }
}

TEST(OneBit, SendsNanForNonFiniteValues) {
  for (const float bad : {inf, std::numeric_limits<float>::quiet_NaN()}) {
    const Coded coded = through(OneBit(), {1, bad, -1});
    for (const float value : coded.decoded) EXPECT_TRUE(std::isnan(value));
    EXPECT_EQ(coded.rest, std::vector<float>(3, 0.0f));
  }
  const float almost = std::nextafter(inf, 0.0f);
  EXPECT_EQ(through(OneBit(), {almost, -almost}).decoded[1], -almost);
}

TEST(OneBit, CountsAScaleAndABitForEachElement) {
  EXPECT_EQ(OneBit().bytes(0), 0);
  EXPECT_EQ(OneBit().bytes(1), 5);
  EXPECT_EQ(OneBit().bytes(8), 5);
  EXPECT_EQ(OneBit().bytes(9), 6);
  EXPECT_EQ(through(OneBit(), {}).decoded.size(), 0u);  // divides by no count
  EXPECT_EQ(through(OneBit(), {0, 0}).decoded, std::vector<float>(2, 0.0f));
}

template <class T>
class WireDtypeOf : public testing::Test {};
using WireDtypes = testing::Types<machine::Half, machine::Bfloat16>;
TYPED_TEST_SUITE(WireDtypeOf, WireDtypes);

TYPED_TEST(WireDtypeOf, RoundsOnceAndKeepsTheRestExactly) {
  const double roundoff = machine::unit_roundoff(machine::dtype_of<TypeParam>);
  const std::vector<float> values = random_values(1009);
  const Coded coded = through(WireDtype<TypeParam>(), values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_LE(std::abs(double{values[i]} - coded.decoded[i]),
              std::max(roundoff * std::abs(double{values[i]}), 0x1p-25));
    EXPECT_EQ(double{coded.decoded[i]} + double{coded.rest[i]}, double{values[i]});
  }
}

TYPED_TEST(WireDtypeOf, PassesOnNonFiniteValuesAndDropsThem) {
  const Coded coded = through(WireDtype<TypeParam>(),
                              {1, inf, -inf, std::numeric_limits<float>::quiet_NaN(), 3e38f});
  EXPECT_EQ(coded.decoded[0], 1);
  EXPECT_EQ(coded.decoded[1], inf);
  EXPECT_EQ(coded.decoded[2], -inf);
  EXPECT_TRUE(std::isnan(coded.decoded[3]));
  EXPECT_EQ(std::isinf(coded.decoded[4]), (std::is_same_v<TypeParam, machine::Half>));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(coded.rest[i], 0) << i;
  EXPECT_TRUE(std::isfinite(coded.rest[4]));
}

TEST(Codes, SumInTheirOrder) {
  const std::unique_ptr<Code> codes[] = {std::make_unique<Int8Block>(),
                                         std::make_unique<WireDtype<machine::Half>>()};
  for (const auto& code : codes) {
    constexpr std::int64_t count = 2500;
    std::vector<std::vector<std::byte>> coded;
    std::vector<const std::byte*> starts;
    std::vector<float> sum(count), expected(count, 0.0f);
    for (int rank = 0; rank < 3; ++rank) {
      std::vector<float> values(count);
      for (std::int64_t i = 0; i < count; ++i)  // exact in 8 bits with a maximum of 127
        values[static_cast<std::size_t>(i)] =
            static_cast<float>(i % 256 == 0 ? 127 : (i * 31 + rank * 7) % 255 - 127);
      for (std::size_t i = 0; i < values.size(); ++i) expected[i] += values[i];
      coded.emplace_back(static_cast<std::size_t>(code->bytes(count)));
      code->encode(values.data(), count, coded.back().data());
    }
    for (const auto& bytes : coded) starts.push_back(bytes.data());
    code->decode_sum(starts, count, sum.data());
    EXPECT_EQ(sum, expected);
  }
}

}  // namespace
}  // namespace collectives
