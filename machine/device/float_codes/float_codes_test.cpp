#include "machine/device/float_codes/float_codes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "machine/testing/on_device.h"

namespace machine {
namespace {

using enum FloatCode;

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr double u = 0x1p-24;

struct Coded {
  std::vector<float> decoded, rest;
};

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

class FloatCodes : public OnDevice {
 protected:
  Tensor squares() { return Tensor(*device_, Dtype::float64, {1}, Category::buffers); }

  // offset: of the code's first byte.
  Coded through(FloatCode code, const std::vector<float>& values, std::int64_t offset = 0) {
    const auto count = std::ssize(values);
    const std::int64_t bytes = coded_bytes(code, count);
    const Tensor rest = on_device(Dtype::float32, values);
    const Tensor decoded =
        on_device(Dtype::float32, std::vector<float>(values.size(), std::nanf("")));
    const std::vector<std::uint8_t> noise(static_cast<std::size_t>(offset + bytes + 1), 0x5a);
    const Tensor memory = on_device(Dtype::uint8, noise);
    const Tensor codes = memory.slice(offset, {bytes});
    encode_floats(stream(), code, rest, codes, squares());
    decode_floats(stream(), code, codes, 1, bytes, decoded);
    const auto after = from_device<std::uint8_t>(memory);
    EXPECT_EQ(after.back(), 0x5a) << "wrote beyond its bytes";
    if (offset > 0) {
      EXPECT_EQ(after[static_cast<std::size_t>(offset) - 1], 0x5a) << "wrote before its bytes";
    }
    return {from_device<float>(decoded), from_device<float>(rest)};
  }
};

int levels(FloatCode code) { return code == int8_block ? 127 : 7; }

TEST_P(FloatCodes, OfBlocksAreWithinHalfAStepAndKeepTheRest) {
  for (const FloatCode code : {int8_block, int4_block})
    for (const std::int64_t count : {1, 2, 33, 255, 256, 257, 1009}) {
      const std::vector<float> values = random_values(count);
      const Coded coded = through(code, values, count % 4);
      double most_of_bound = 0;
      for (std::int64_t begin = 0; begin < count; begin += 256) {
        double largest = 0;
        const std::int64_t end = std::min(count, begin + 256);
        for (std::int64_t i = begin; i < end; ++i)
          largest = std::max(largest, std::abs(double{values[static_cast<std::size_t>(i)]}));
        const double scale = largest / levels(code);
        const double bound = scale * (0.5 + levels(code) * 4 * u);
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

TEST_P(FloatCodes, OfBlocksAreZerosForZeroAndTheSmallestValues) {
  for (const FloatCode code : {int8_block, int4_block}) {
    for (const float tiny : {0.0f, 0x1p-149f, -0x1p-120f}) {
      const Coded coded = through(code, std::vector<float>(300, tiny));
      EXPECT_EQ(coded.decoded, std::vector<float>(300, 0.0f)) << tiny;
      EXPECT_EQ(coded.rest, std::vector<float>(300, tiny)) << tiny;
    }
    const Coded least = through(code, {0x1p-119f, 0x1p-121f});
    EXPECT_EQ(least.decoded[0], 0x1p-119f);
    const float almost = std::nextafter(0x1p127f, 0.0f);
    const Coded largest = through(code, {almost, 1});
    EXPECT_NEAR(largest.decoded[0] / almost, 1, 4 * u);
  }
}

TEST_P(FloatCodes, OnlyBlocksOutOfRangeBecomeNan) {
  for (const FloatCode code : {int8_block, int4_block})
    for (const float bad : {inf, -inf, std::numeric_limits<float>::quiet_NaN(), 0x1p127f}) {
      std::vector<float> values(700, 1.0f);
      values[300] = bad;
      const Coded coded = through(code, values);
      for (std::size_t i = 0; i < 700; ++i) {
        EXPECT_EQ(std::isnan(coded.decoded[i]), i >= 256 && i < 512) << i;
        if (i >= 256 && i < 512) {
          EXPECT_EQ(coded.rest[i], 0.0f) << i;
        }
      }
    }
}

TEST(FloatCodeBytes, CountAScaleForEachBlockOrTensor) {
  EXPECT_EQ(coded_bytes(int8_block, 0), 0);
  EXPECT_EQ(coded_bytes(int8_block, 1), 5);
  EXPECT_EQ(coded_bytes(int8_block, 256), 260);
  EXPECT_EQ(coded_bytes(int8_block, 257), 265);
  EXPECT_EQ(coded_bytes(int4_block, 0), 0);
  EXPECT_EQ(coded_bytes(int4_block, 257), 128 + 4 + 1 + 4);
  EXPECT_EQ(coded_bytes(one_bit, 0), 0);
  EXPECT_EQ(coded_bytes(one_bit, 1), 5);
  EXPECT_EQ(coded_bytes(one_bit, 8), 5);
  EXPECT_EQ(coded_bytes(one_bit, 9), 6);
  EXPECT_EQ(coded_bytes(half, 3), 6);
}

TEST_P(FloatCodes, OfOneBitAreSignsAndTheRootOfTheMeanSquare) {
  const Coded coded = through(one_bit, {3, -1, 0, -0.0f, 5, -5, 2, 0, 0, -0.0f, 0});
  const float scale = std::sqrt(64.0f / 11);
  const std::vector<float> decoded{scale, -scale, scale, scale, scale, -scale,
                                   scale, scale,  scale, scale, scale};
  EXPECT_EQ(coded.decoded, decoded);
  EXPECT_EQ(coded.rest[0], 3 - scale);
  EXPECT_EQ(coded.rest[1], -1 + scale);
  EXPECT_EQ(coded.rest[10], -scale);
}

TEST_P(FloatCodes, OfOneBitKeepTheRestOfLongTensors) {
  const std::vector<float> values = random_values(2503);
  const Coded coded = through(one_bit, values, 3);
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(std::signbit(coded.decoded[i]), values[i] < 0) << i;
    ASSERT_EQ(coded.rest[i], values[i] - coded.decoded[i]) << i;
  }
}

TEST_P(FloatCodes, OfOneBitAreNanForNonFiniteValues) {
  for (const float bad : {inf, std::numeric_limits<float>::quiet_NaN()}) {
    const Coded coded = through(one_bit, {1, bad, -1});
    for (const float value : coded.decoded) EXPECT_TRUE(std::isnan(value));
    EXPECT_EQ(coded.rest, std::vector<float>(3, 0.0f));
  }
  const float almost = std::nextafter(inf, 0.0f);
  EXPECT_EQ(through(one_bit, {almost, -almost}).decoded[1], -almost);
}

TEST_P(FloatCodes, OfNoValuesOrZerosDecode) {
  for (const FloatCode code : {int8_block, int4_block, one_bit, half, bfloat16}) {
    EXPECT_EQ(through(code, {}).decoded.size(), 0u);
    EXPECT_EQ(through(code, {0, 0}).decoded, std::vector<float>(2, 0.0f));
  }
}

TEST_P(FloatCodes, OfTwoBytesRoundOnceAndKeepTheRestExactly) {
  for (const FloatCode code : {half, bfloat16}) {
    const double roundoff = unit_roundoff(code == half ? Dtype::float16 : Dtype::bfloat16);
    const std::vector<float> values = random_values(1009);
    const Coded coded = through(code, values, 2);
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_LE(std::abs(double{values[i]} - coded.decoded[i]),
                std::max(roundoff * std::abs(double{values[i]}), 0x1p-25));
      EXPECT_EQ(double{coded.decoded[i]} + double{coded.rest[i]}, double{values[i]});
    }
  }
}

TEST_P(FloatCodes, OfTwoBytesPassOnNonFiniteValuesAndDropThem) {
  for (const FloatCode code : {half, bfloat16}) {
    const Coded coded =
        through(code, {1, inf, -inf, std::numeric_limits<float>::quiet_NaN(), 3e38f});
    EXPECT_EQ(coded.decoded[0], 1);
    EXPECT_EQ(coded.decoded[1], inf);
    EXPECT_EQ(coded.decoded[2], -inf);
    EXPECT_TRUE(std::isnan(coded.decoded[3]));
    EXPECT_EQ(std::isinf(coded.decoded[4]), code == half);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(coded.rest[i], 0) << i;
    EXPECT_TRUE(std::isfinite(coded.rest[4]));
    if (code == half) {
      EXPECT_EQ(coded.rest[4], 0);
    }
  }
}

TEST_P(FloatCodes, SumInTheirOrder) {
  constexpr std::int64_t count = 2500;
  constexpr int ranks = 3;
  for (const FloatCode code : {int8_block, half}) {
    const std::int64_t stride = coded_bytes(code, count) + 2;
    const Tensor codes(*device_, Dtype::uint8, {ranks * stride}, Category::buffers);
    std::vector<float> expected(count, 0.0f);
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<float> values(count);
      for (std::int64_t i = 0; i < count; ++i)  // exact in 8 bits with a maximum of 127
        values[static_cast<std::size_t>(i)] =
            static_cast<float>(i % 256 == 0 ? 127 : (i * 31 + rank * 7) % 255 - 127);
      for (std::size_t i = 0; i < values.size(); ++i) expected[i] += values[i];
      encode_floats(stream(), code, on_device(Dtype::float32, values),
                    codes.slice(rank * stride, {coded_bytes(code, count)}), squares());
    }
    const Tensor sum(*device_, Dtype::float32, {count}, Category::buffers);
    decode_floats(stream(), code, codes, ranks, stride, sum);
    EXPECT_EQ(from_device<float>(sum), expected);
  }
}

// Float sums depend on the order: (1 + 2^25) - 2^25 is 0, 1 + (2^25 - 2^25) is 1.
TEST_P(FloatCodes, OfOneValueSumInTheirOrder) {
  const std::vector<float> terms{1, 0x1p25f, -0x1p25f};
  for (const FloatCode code : {int8_block, int4_block, one_bit, bfloat16}) {
    const std::int64_t stride = 8;
    const Tensor codes(*device_, Dtype::uint8, {3 * stride}, Category::buffers);
    float expected = 0;
    for (std::size_t term = 0; term < terms.size(); ++term) {
      const std::vector<float> value{terms[term]};
      expected =
          term == 0 ? through(code, value).decoded[0] : expected + through(code, value).decoded[0];
      encode_floats(stream(), code, on_device(Dtype::float32, value),
                    codes.slice(static_cast<std::int64_t>(term) * stride, {coded_bytes(code, 1)}),
                    squares());
    }
    const Tensor sum(*device_, Dtype::float32, {1}, Category::buffers);
    decode_floats(stream(), code, codes, 3, stride, sum);
    EXPECT_EQ(from_device<float>(sum)[0], expected);
  }
}

TEST_P(FloatCodes, RejectOtherSizesAndDtypes) {
  const Tensor values = random({256}), codes(*device_, Dtype::uint8, {260}, Category::buffers);
  EXPECT_THROW(encode_floats(stream(), int4_block, values, codes, squares()), std::logic_error);
  EXPECT_THROW(encode_floats(stream(), int8_block, random({256}, Dtype::float64), codes, squares()),
               std::logic_error);
  EXPECT_THROW(decode_floats(stream(), int8_block, codes, 2, 260, values), std::logic_error);
  EXPECT_THROW(decode_floats(stream(), int8_block, codes, 0, 260, values), std::logic_error);
}

constexpr Dtype values_of_codes[] = {Dtype::float32};
SHARDMARK_ON_EVERY_DEVICE_IN(FloatCodes, values_of_codes);

}  // namespace
}  // namespace machine
