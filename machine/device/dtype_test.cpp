#include "machine/device/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace machine {
namespace {

// A format by definition: value = mantissa * 2^exponent. Patterns are searched, not computed.
struct Format {
  int mantissa_bits, exponent_bits;
  bool has_infinity = true, saturates = false;

  int sign() const { return 1 << (mantissa_bits + exponent_bits); }
  int patterns() const { return 2 * sign(); }
  double value(int bits) const {
    const int ones = (1 << mantissa_bits) - 1, mantissa = bits & ones;
    const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const double sign_of = bits & sign() ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) {
      if (has_infinity) return mantissa ? NAN : sign_of * INFINITY;
      if (mantissa == ones) return NAN;
    }
    if (exponent == 0) return sign_of * std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign_of * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }
  // Returns the nearest of all positive numbers, with ties to the even pattern. The pattern after
  // the largest number has the value that it would have in a longer format.
  int nearest(double magnitude) const {
    const int above = has_infinity ? ((1 << exponent_bits) - 1) << mantissa_bits : sign() - 1;
    const auto position = [&](int bits) {
      return bits == above ? 2 * value(above - 1) - value(above - 2) : value(bits);
    };
    int low = 0, high = above;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (position(middle) <= magnitude ? low : high) = middle;
    }
    const double below = magnitude - position(low), over = position(high) - magnitude;
    const int found = below != over ? (below < over ? low : high) : low % 2 == 0 ? low : high;
    return saturates ? std::min(found, above - 1) : found;
  }
};

template <class T>
constexpr Format format_of = {7, 8};
template <>
constexpr Format format_of<Half> = {10, 5};
template <>
constexpr Format format_of<Float8E4M3> = {3, 4, false, true};
template <>
constexpr Format format_of<Float8E5M2> = {2, 5, true, true};

template <class T>
struct Narrow : testing::Test {
  static constexpr Format format = format_of<T>;
  using Bits = decltype(T::bits);
};
using NarrowTypes = testing::Types<Bfloat16, Half, Float8E4M3, Float8E5M2>;
TYPED_TEST_SUITE(Narrow, NarrowTypes);

TYPED_TEST(Narrow, EveryPatternWidensToItsValueAndBack) {
  for (int pattern = 0; pattern < this->format.patterns(); ++pattern) {
    TypeParam narrow;
    narrow.bits = static_cast<typename TestFixture::Bits>(pattern);
    const float wide = static_cast<float>(narrow);
    const double value = this->format.value(pattern);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(wide)) << pattern;
      ASSERT_TRUE(std::isnan(static_cast<float>(TypeParam(wide)))) << pattern;
      continue;
    }
    ASSERT_EQ(wide, value) << pattern;
    if (std::isfinite(value) || !this->format.saturates) {
      ASSERT_EQ(TypeParam(wide).bits, narrow.bits) << pattern;
    }
  }
}

TYPED_TEST(Narrow, RoundsToNearestEven) {
  std::mt19937 generator(7);
  const auto check = [&](float value) {
    const int sign = std::signbit(value) ? this->format.sign() : 0;
    ASSERT_EQ(TypeParam(value).bits, sign | this->format.nearest(std::abs(double{value}))) << value;
  };
  for (int i = 0; i < 300000; ++i) {
    const float any = std::bit_cast<float>(static_cast<std::uint32_t>(generator()));
    if (!std::isnan(any)) check(any);
    // In the range of half, including its subnormal numbers.
    const float small = std::ldexp(std::uniform_real_distribution<float>(-1, 1)(generator),
                                   static_cast<int>(generator() % 45) - 28);
    check(small);
  }
  // Every tie between neighbours, and the floats next to it.
  for (int pattern = 0; pattern + 1 < this->format.sign(); ++pattern) {
    const double low = this->format.value(pattern), high = this->format.value(pattern + 1);
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const float tie = static_cast<float>((low + high) / 2);
    for (const float value : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, INFINITY)}) {
      check(value);
      check(-value);
    }
  }
}

TEST(Dtype, HasItsSizeAndNames) {
  std::string names;
  for (const Dtype dtype : every_dtype) {
    visit_every(dtype, [&](auto zero) {
      EXPECT_EQ(sizeof(zero), size_of(dtype));
      EXPECT_EQ(dtype_of<decltype(zero)>, dtype);
      EXPECT_EQ(is_floating(dtype), !std::is_integral_v<decltype(zero)>);
    });
    names += std::string(name(dtype)) + " ";
  }
  EXPECT_EQ(names,
            "float bfloat16 half double f8e4m3 f8e5m2 int8 uint8 int32 uint32 int64 uint64 ");
}

TEST(Dtype, OnlyFloatingDtypesCompute) {
  for (const Dtype dtype : floating_dtypes)
    visit(dtype, [&](auto zero) { EXPECT_EQ(dtype_of<decltype(zero)>, dtype); });
  for (const Dtype dtype : every_dtype) {
    bool computes = true;
    try {
      visit(dtype, [](auto) {});
    } catch (const std::logic_error&) {
      computes = false;
    }
    EXPECT_EQ(computes, has_every_kernel(dtype)) << name(dtype);
  }
}

// 1 + u is a tie that rounds to 1. The next double above it does not.
TEST(Dtype, UnitRoundoffIsHalfTheGapAboveOne) {
  EXPECT_EQ(static_cast<float>(Bfloat16(1 + static_cast<float>(unit_roundoff(Dtype::bfloat16)))),
            1);
  EXPECT_GT(static_cast<float>(Bfloat16(1.001f + 0x1p-8f)), 1);
  EXPECT_EQ(static_cast<float>(Float8E4M3(1.0625f)), 1);
  EXPECT_GT(static_cast<float>(Float8E4M3(1.063f)), 1);
  EXPECT_EQ(static_cast<float>(Float8E5M2(1.125f)), 1);
  EXPECT_GT(static_cast<float>(Float8E5M2(1.126f)), 1);
  EXPECT_EQ(static_cast<float>(1 + unit_roundoff(Dtype::float32)), 1);
  EXPECT_GT(static_cast<float>(1 + unit_roundoff(Dtype::float32) * 1.01), 1);
  EXPECT_EQ(static_cast<float>(Half(1 + static_cast<float>(unit_roundoff(Dtype::float16)))), 1);
}

}  // namespace
}  // namespace machine
