#include "machine/device/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace machine {
namespace {

// A 16-bit format by definition: value = mantissa * 2^exponent, walked through and not computed.
struct Format {
  int mantissa_bits, exponent_bits;
  double value(std::uint16_t bits) const {
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }
  // The nearest of all positive numbers, ties to the even pattern; infinity stands where the next
  // power of two would.
  std::uint16_t nearest(double magnitude) const {
    const std::uint16_t infinity =
        static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
    std::uint16_t low = 0, high = infinity;
    const auto position = [&](std::uint16_t bits) {
      return bits == infinity
                 ? 2 * value(static_cast<std::uint16_t>(infinity - (1 << mantissa_bits)))
                 : value(bits);
    };
    if (magnitude >= position(infinity)) return infinity;
    while (high - low > 1) {
      const auto middle = static_cast<std::uint16_t>((low + high) / 2);
      (position(middle) <= magnitude ? low : high) = middle;
    }
    const double below = magnitude - position(low), above = position(high) - magnitude;
    if (below != above) return below < above ? low : high;
    return low % 2 == 0 ? low : high;
  }
};

template <class T>
struct Narrow : testing::Test {
  static constexpr Format format = std::is_same_v<T, Half> ? Format{10, 5} : Format{7, 8};
};
using NarrowTypes = testing::Types<Bfloat16, Half>;
TYPED_TEST_SUITE(Narrow, NarrowTypes);

TYPED_TEST(Narrow, EveryPatternWidensToItsValueAndBack) {
  for (int pattern = 0; pattern < 65536; ++pattern) {
    TypeParam narrow;
    narrow.bits = static_cast<std::uint16_t>(pattern);
    const float wide = static_cast<float>(narrow);
    const double value = this->format.value(narrow.bits);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(wide)) << pattern;
      ASSERT_TRUE(std::isnan(static_cast<float>(TypeParam(wide)))) << pattern;
    } else {
      ASSERT_EQ(wide, value) << pattern;
      ASSERT_EQ(TypeParam(wide).bits, narrow.bits) << pattern;
    }
  }
}

TYPED_TEST(Narrow, RoundsToNearestEven) {
  std::mt19937 generator(7);
  const auto check = [&](float value) {
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    ASSERT_EQ(TypeParam(value).bits, sign | this->format.nearest(std::abs(double{value}))) << value;
  };
  for (int i = 0; i < 300000; ++i) {
    const float any = std::bit_cast<float>(static_cast<std::uint32_t>(generator()));
    if (!std::isnan(any)) check(any);
    // In the range of half, its subnormal numbers included.
    const float small = std::ldexp(std::uniform_real_distribution<float>(-1, 1)(generator),
                                   static_cast<int>(generator() % 45) - 28);
    check(small);
  }
  // Every tie between neighbours, and the floats beside it.
  for (int pattern = 0; pattern < 0x7fff; ++pattern) {
    const double low = this->format.value(static_cast<std::uint16_t>(pattern));
    const double high = this->format.value(static_cast<std::uint16_t>(pattern + 1));
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const float tie = static_cast<float>((low + high) / 2);
    for (const float value : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, INFINITY)}) {
      check(value);
      check(-value);
    }
  }
}

TEST(Dtype, KnowsItsSizeAndNames) {
  std::string names;
  for (const Dtype dtype : every_dtype) {
    visit_every(dtype, [&](auto zero) {
      EXPECT_EQ(sizeof(zero), size_of(dtype));
      EXPECT_EQ(dtype_of<decltype(zero)>, dtype);
      EXPECT_EQ(is_floating(dtype), !std::is_integral_v<decltype(zero)>);
    });
    names += std::string(name(dtype)) + " ";
  }
  EXPECT_EQ(names, "float bfloat16 half double int8 uint8 int32 uint32 int64 uint64 ");
}

TEST(Dtype, OnlyFloatingOnesAreComputedWith) {
  for (const Dtype dtype : floating_dtypes)
    visit(dtype, [&](auto zero) { EXPECT_EQ(dtype_of<decltype(zero)>, dtype); });
  for (const Dtype dtype : integer_dtypes)
    EXPECT_THROW(visit(dtype, [](auto) {}), std::logic_error) << name(dtype);
}

// 1 + u is a tie that goes to 1; the next double above it does not.
TEST(Dtype, UnitRoundoffIsHalfTheGapAboveOne) {
  EXPECT_EQ(static_cast<float>(Bfloat16(1 + static_cast<float>(unit_roundoff(Dtype::bfloat16)))),
            1);
  EXPECT_GT(static_cast<float>(Bfloat16(1.001f + 0x1p-8f)), 1);
  EXPECT_EQ(static_cast<float>(1 + unit_roundoff(Dtype::float32)), 1);
  EXPECT_GT(static_cast<float>(1 + unit_roundoff(Dtype::float32) * 1.01), 1);
  EXPECT_EQ(static_cast<float>(Half(1 + static_cast<float>(unit_roundoff(Dtype::float16)))), 1);
}

}  // namespace
}  // namespace machine
