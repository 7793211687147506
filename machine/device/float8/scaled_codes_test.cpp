// Compares codes and scales with a second reading of the formats in double: the values of all codes
// by their fields, the nearest of them by search, and the scales by the rules of the header. All
// bits must agree: a float quotient or product is the double one rounded once more.

#include "machine/device/float8/scaled_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "machine/testing/on_device.h"

namespace machine {
namespace {

// Returns the value of a code by its sign, exponent and mantissa; NaN for NaN and infinity.
double value_of(Dtype float8, int code) {
  const bool e4m3 = float8 == Dtype::float8_e4m3;
  const int mantissa_bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
  const int mantissa = code & ((1 << mantissa_bits) - 1), exponent = (code & 0x7f) >> mantissa_bits;
  if (e4m3 ? (code & 0x7f) == 0x7f : exponent == 31) return NAN;
  const double steps = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
  const double value = std::ldexp(steps, std::max(exponent, 1) - bias - mantissa_bits);
  return (code & 0x80) != 0 ? -value : value;
}

// Returns the code whose value is nearest; of two the even one. Larger values become the largest.
int nearest_code(Dtype float8, double value) {
  static const std::vector<Values> tables = [] {
    std::vector<Values> all(2);
    for (int code = 0; code < 0x80; ++code)
      for (const Dtype format : {Dtype::float8_e4m3, Dtype::float8_e5m2})
        if (!std::isnan(value_of(format, code)))
          all[format == Dtype::float8_e5m2].push_back(value_of(format, code));
    return all;
  }();
  const Values& table = tables[float8 == Dtype::float8_e5m2];
  const double size = std::min(std::abs(value), table.back());
  std::size_t best = 0;
  for (std::size_t code = 1; code < table.size(); ++code) {
    const double distance = std::abs(table[code] - size), least = std::abs(table[best] - size);
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  return static_cast<int>(best) | (std::signbit(value) ? 0x80 : 0);
}

class ScaledCodes : public OnDevice {
 protected:
  std::vector<int> bits_of(const Tensor& codes) {
    std::vector<std::uint8_t> bytes(codes.bytes());
    stream().copy(bytes.data(), codes.data(), bytes.size());
    stream().synchronize();
    return {bytes.begin(), bytes.end()};
  }
  Tensor floats(const Values& values) {
    Tensor tensor = empty({static_cast<std::int64_t>(values.size())}, Dtype::float32);
    from_doubles(tensor, values);
    return tensor;
  }
  Tensor raw(Shape shape, Dtype of) { return Tensor(*device_, of, shape, Category::buffers); }
};

constexpr Dtype formats[] = {Dtype::float8_e4m3, Dtype::float8_e5m2};

TEST_P(ScaledCodes, RoundToTheNearestCode) {
  for (const Dtype float8 : formats) {
    Values values{0, -0.0, INFINITY, -INFINITY, 1e30, -1e30};
    for (int code = 0; code < 0x7f; ++code) {
      const double low = value_of(float8, code), high = value_of(float8, code + 1);
      if (std::isnan(low) || std::isnan(high)) continue;
      for (const double sign : {1.0, -1.0})
        for (const double part : {0.0, 0.25, 0.5, 0.75}) {
          values.push_back(sign * (low + part * (high - low)));
          if (dtype() != Dtype::float32) continue;
          const auto tie = static_cast<float>(values.back());
          values.push_back(std::nextafter(tie, INFINITY));
          values.push_back(std::nextafter(tie, -INFINITY));
        }
    }
    Tensor x = empty({static_cast<std::int64_t>(values.size())});
    from_doubles(x, values);
    values = to_doubles(x);  // as x has them
    const Tensor codes = raw(x.shape(), float8);
    encode(stream(), x, Blocks::whole(x), floats({1}), codes);
    const std::vector<int> got = bits_of(codes);
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(got[i], nearest_code(float8, values[i])) << name(float8) << " " << values[i];
  }
}

TEST_P(ScaledCodes, DecodeEveryCode) {
  for (const Dtype float8 : formats) {
    const Tensor codes = raw({256}, float8), values = empty({256}, Dtype::float32);
    std::vector<std::uint8_t> bytes(256);
    for (int code = 0; code < 256; ++code) bytes[code] = static_cast<std::uint8_t>(code);
    stream().copy(codes.data(), bytes.data(), bytes.size());
    for (const double inverse : {1.0, 0.75, 0x1p-20}) {
      decode(stream(), codes, Blocks::whole(codes), floats({inverse}), values);
      stream().synchronize();
      const Values got = to_doubles(values);
      for (int code = 0; code < 256; ++code) {
        const double want = value_of(float8, code) * inverse;
        if (float8 == Dtype::float8_e5m2 && (code & 0x7f) == 0x7c)
          ASSERT_TRUE(std::isinf(got[code])) << code;
        else if (std::isnan(want))
          ASSERT_TRUE(std::isnan(got[code])) << code;
        else
          ASSERT_EQ(got[code], want) << code;
      }
    }
  }
}

// Every block of every recipe: a neighbour's scale, or a wrong border, changes the codes, because
// each block has its own magnitude.
TEST_P(ScaledCodes, EveryBlockHasItsOwnScale) {
  constexpr std::int64_t rows = 36, cols = 150;
  Tensor x = random({rows, cols});
  Values values = to_doubles(x);
  for (std::int64_t i = 0; i < rows * cols; ++i)  // 16-fold from one 16 x 16 block to the next
    values[i] *= std::ldexp(1, static_cast<int>((i / cols / 16 + i % cols / 16) % 3) * 4 - 4);
  from_doubles(x, values);
  values = to_doubles(x);
  for (const Dtype float8 : formats)
    for (const Blocks blocks :
         {Blocks{1, 32}, Blocks{32, 1}, Blocks{1, 128}, Blocks{16, 16}, Blocks{rows, cols}}) {
      const std::int64_t across = (cols + blocks.cols - 1) / blocks.cols,
                         down = (rows + blocks.rows - 1) / blocks.rows;
      Values amax(static_cast<std::size_t>(across * down));
      const auto block_of = [&](std::int64_t i) {
        return static_cast<std::size_t>(i / cols / blocks.rows * across + i % cols / blocks.cols);
      };
      for (std::int64_t i = 0; i < rows * cols; ++i)
        amax[block_of(i)] = std::max(amax[block_of(i)], std::abs(values[i]));
      const Tensor found = empty({down, across}, Dtype::float32);
      largest_magnitudes(stream(), x, blocks, found);
      EXPECT_EQ(to_doubles(found), amax);
      const Tensor scale = empty(found.shape(), Dtype::float32),
                   inverse = empty(found.shape(), Dtype::float32),
                   exponent = raw(found.shape(), Dtype::uint8), codes = raw({rows, cols}, float8),
                   decoded = empty({rows, cols}, Dtype::float32);
      choose_scales(stream(), found, float8, {}, scale, inverse);
      choose_exponents(stream(), found, float8, exponent);
      for (const bool powers : {false, true}) {
        encode(stream(), x, blocks, powers ? exponent : scale, codes);
        decode(stream(), codes, blocks, powers ? exponent : inverse, decoded);
        const std::vector<int> got = bits_of(codes);
        const Values back = to_doubles(decoded);
        for (std::int64_t i = 0; i < rows * cols; ++i) {
          const double top = amax[block_of(i)], largest = largest_of(float8);
          double by = static_cast<float>(largest / top);
          double divisor = static_cast<float>(1 / by);
          if (powers) {
            divisor = std::ldexp(1, std::ilogb(top) - largest_exponent_of(float8));
            by = 1 / divisor;
          }
          ASSERT_EQ(got[i], nearest_code(float8, static_cast<float>(values[i] * by)))
              << name(float8) << " " << blocks.rows << "x" << blocks.cols << " element " << i;
          ASSERT_EQ(back[i], static_cast<float>(value_of(float8, got[i]) * divisor)) << i;
        }
      }
    }
}

TEST_P(ScaledCodes, ScalesFollowTheRule) {
  const double max = std::numeric_limits<float>::max(), least = 0x1p-149;
  const Values amax{1, 448, 3, 0, INFINITY, least, -0.0};
  const auto scales = [&](Dtype float8, const ScaleRule& rule) {
    const Tensor scale = floats(Values(amax.size(), 7)),
                 inverse = empty(scale.shape(), Dtype::float32);
    choose_scales(stream(), floats(amax), float8, rule, scale, inverse);
    const Values got = to_doubles(scale), inverses = to_doubles(inverse);
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(inverses[i], static_cast<float>(1 / got[i])) << i;
    return got;
  };
  const auto third = [](double largest) {
    return static_cast<double>(static_cast<float>(largest / 3));
  };
  EXPECT_EQ(scales(Dtype::float8_e4m3, {}), (Values{448, 1, third(448), 1, 1, max, 1}));
  EXPECT_EQ(scales(Dtype::float8_e4m3, {.margin = 3}),
            (Values{56, 0.125, third(448) / 8, 1, 1, max, 1}));
  EXPECT_EQ(scales(Dtype::float8_e4m3, {.margin = -1, .keeps = true}),
            (Values{896, 2, third(448) * 2, 7, 7, max, 7}));
  EXPECT_EQ(scales(Dtype::float8_e5m2, {.keeps = true}),
            (Values{57344, 128, third(57344), 7, 7, max, 7}));
}

TEST_P(ScaledCodes, ExponentsFollowTheSpecification) {
  const Values amax{1, 1.99, 448, 0, -0.0, 0x1p-149, 0x1p-118, 0x1p-119, 0x1.8p127, INFINITY};
  const Tensor exponent = raw({static_cast<std::int64_t>(amax.size())}, Dtype::uint8);
  choose_exponents(stream(), floats(amax), Dtype::float8_e4m3, exponent);
  EXPECT_EQ(bits_of(exponent), (std::vector<int>{119, 119, 127, 0, 0, 0, 1, 0, 246, 255}));
  choose_exponents(stream(), floats(amax), Dtype::float8_e5m2, exponent);
  EXPECT_EQ(bits_of(exponent), (std::vector<int>{112, 112, 120, 0, 0, 0, 0, 0, 239, 255}));
}

TEST_P(ScaledCodes, NanReachesItsElementOnly) {
  Tensor x = empty({1, 64});
  Values values(64, 2);
  values[5] = NAN;
  from_doubles(x, values);
  const Tensor amax = empty({1, 2}, Dtype::float32), exponent = raw({1, 2}, Dtype::uint8),
               codes = raw({1, 64}, Dtype::float8_e4m3), back = empty({1, 64}, Dtype::float32);
  largest_magnitudes(stream(), x, {1, 32}, amax);
  EXPECT_EQ(to_doubles(amax), (Values{2, 2}));
  choose_exponents(stream(), amax, codes.dtype(), exponent);
  encode(stream(), x, {1, 32}, exponent, codes);
  decode(stream(), codes, {1, 32}, exponent, back);
  const Values got = to_doubles(back);
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(i == 5 ? std::isnan(got[i]) : got[i] == 2) << i;
}

TEST_P(ScaledCodes, RejectOtherShapesAndDtypes) {
  const Tensor x = random({4, 8}), codes = raw({4, 8}, Dtype::float8_e4m3), one = floats({1});
  EXPECT_THROW(encode(stream(), x, {1, 4}, one, codes), std::logic_error);
  EXPECT_THROW(encode(stream(), x, Blocks::whole(x), one, raw({4, 8}, Dtype::int8)),
               std::logic_error);
  EXPECT_THROW(encode(stream(), random({4, 8}, Dtype::float64), Blocks::whole(x), one, codes),
               std::logic_error);
  EXPECT_THROW(decode(stream(), codes, {0, 8}, one, x), std::logic_error);
}

constexpr Dtype values_of_codes[] = {Dtype::float32, Dtype::bfloat16, Dtype::float16};
SHARDMARK_ON_EVERY_DEVICE_IN(ScaledCodes, values_of_codes);

}  // namespace
}  // namespace machine
