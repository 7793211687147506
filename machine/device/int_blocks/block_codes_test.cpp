// Compares codes, scales and decoded values with a second reading of the format in double. All bits
// must agree: a float quotient or product is the double one rounded once more.

#include "machine/device/int_blocks/block_codes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "machine/testing/on_device.h"

namespace machine {
namespace {

constexpr int block = 64;

double in_float(double value) { return static_cast<float>(value); }

// Returns the least number of 8 significant bits that is not below value.
double up_to_8_bits(double value) {
  const double unit = std::ldexp(1, std::ilogb(value) - 7);
  return std::ceil(value / unit) * unit;
}

struct Coded {
  std::vector<int> q;
  double scale = 0;
};

Coded second_reading(const double* values, int levels) {
  Coded coded{std::vector<int>(block), 0};
  double largest = 0;
  for (int i = 0; i < block; ++i) {
    if (!(std::abs(values[i]) < 0x1p127)) coded.scale = NAN;
    largest = std::max(largest, std::abs(values[i]));
  }
  if (std::isnan(coded.scale) || largest < 0x1p-119) return coded;
  coded.scale = up_to_8_bits(in_float(largest / levels));
  const double by = in_float(1 / coded.scale);
  for (int i = 0; i < block; ++i)
    coded.q[static_cast<std::size_t>(i)] =
        static_cast<int>(std::nearbyint(in_float(values[i] * by)));
  return coded;
}

class BlockCodes : public OnDevice {
 protected:
  Tensor raw(std::int64_t bytes) {
    Tensor codes(*device_, Dtype::uint8, {bytes}, Category::buffers);
    const std::vector<std::uint8_t> noise(static_cast<std::size_t>(bytes), 0xa5);
    stream().copy(codes.data(), noise.data(), noise.size());
    stream().synchronize();
    return codes;
  }
  std::vector<std::uint8_t> bytes_of(const Tensor& codes) {
    std::vector<std::uint8_t> bytes(codes.bytes());
    stream().copy(bytes.data(), codes.data(), bytes.size());
    stream().synchronize();
    return bytes;
  }
  // Rows of blocks whose sizes differ by powers of three, with exact zeros.
  Tensor blocks(std::int64_t rows, std::int64_t n) {
    const Tensor values = random({rows, n}, dtype(), -1, 1);
    Values all = to_doubles(values);
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = i % 7 == 3 ? 0 : all[i] * std::pow(3, static_cast<double>(i / block % 5) - 3);
    from_doubles(values, all);
    return values;
  }
};

// The layout of a row, its scale and each code, also in the transposed order.
TEST_P(BlockCodes, EqualASecondReading) {
  constexpr std::int64_t rows = 6, n = 3 * block;
  const Tensor values = blocks(rows, n);
  const Values all = to_doubles(values);
  for (const int bits : {8, 4})
    for (const std::int64_t columns : {1, 2, 3, 6}) {
      const std::int64_t of_row = code_bytes(bits, n);
      EXPECT_EQ(of_row, bits == 8 ? n + 6 : n / 2 + 6);
      const Tensor codes = raw(rows * of_row);
      encode_blocks(stream(), values, rows, bits, codes, columns);
      const std::vector<std::uint8_t> got = bytes_of(codes);
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::uint8_t* const code =
            got.data() + (row % columns * (rows / columns) + row / columns) * of_row;
        for (int b = 0; b < 3; ++b) {
          const Coded want = second_reading(all.data() + row * n + b * block, bits == 8 ? 127 : 7);
          const std::uint8_t* const scale = code + (bits == 8 ? n : n / 2) + 2 * b;
          const double got_scale =
              detail::bits_as<float>(static_cast<std::uint32_t>(scale[0] | scale[1] << 8) << 16);
          ASSERT_EQ(got_scale, want.scale) << bits << " bits, row " << row << ", block " << b;
          for (int i = 0; i < block; ++i) {
            int q = 0;
            if (bits == 8) {
              q = code[b * block + i];
              if (q >= 128) q -= 256;
            } else {
              const int byte = code[b * block / 2 + i % 32];
              q = i < 32 ? byte % 16 : byte / 16;
              if (q >= 8) q -= 16;
            }
            ASSERT_EQ(q, want.q[static_cast<std::size_t>(i)]) << bits << " bits, element " << i;
          }
        }
      }
    }
}

// The sum of three ranks' codes, in their order, and each value within half a step.
TEST_P(BlockCodes, DecodeToTheSumOfTerms) {
  constexpr std::int64_t rows = 2, n = 2 * block, terms = 3;
  for (const int bits : {8, 4}) {
    const int levels = bits == 8 ? 127 : 7;
    const std::int64_t bytes = rows * code_bytes(bits, n);
    const Tensor codes = raw(terms * bytes);
    std::vector<Values> of_terms;
    for (std::int64_t term = 0; term < terms; ++term) {
      const Tensor values = blocks(rows, n);
      of_terms.push_back(to_doubles(values));
      encode_blocks(stream(), values, rows, bits, codes.slice(term * bytes, {bytes}));
    }
    const Tensor sums = empty({rows, n}), one = empty({rows, n}, Dtype::float32);
    decode_blocks(stream(), codes, terms, bits, sums, rows);
    decode_blocks(stream(), codes.slice(0, {bytes}), 1, bits, one, rows);
    const Values got = to_doubles(sums), first = to_doubles(one);
    for (std::int64_t i = 0; i < rows * n; ++i) {
      double sum = 0;
      for (const Values& values : of_terms) {
        const Coded coded = second_reading(values.data() + i / block * block, levels);
        const double decoded = coded.q[static_cast<std::size_t>(i % block)] * coded.scale;
        const double value = values[static_cast<std::size_t>(i)];
        ASSERT_LE(std::abs(decoded - value), coded.scale * (0.5 + levels * 0x1p-22));
        if (&values == &of_terms.front()) {
          ASSERT_EQ(first[static_cast<std::size_t>(i)], decoded);
          sum = decoded;
        } else {
          sum = in_float(sum + decoded);
        }
      }
      const Tensor rounded = empty({1});
      from_doubles(rounded, {sum});
      ASSERT_EQ(got[static_cast<std::size_t>(i)], to_doubles(rounded).front()) << i;
    }
  }
}

// Ties go to even codes, and the largest element has the largest code.
TEST_P(BlockCodes, RoundTiesToEven) {
  Values values(block, 0);
  values[0] = -7;  // the scale is 1
  for (int i = 1; i < 14; ++i) values[static_cast<std::size_t>(i)] = i / 2.0 - 3;
  const Tensor x = empty({1, block});
  from_doubles(x, values);
  const Tensor codes = raw(code_bytes(4, block)), back = empty({1, block});
  encode_blocks(stream(), x, 1, 4, codes);
  decode_blocks(stream(), codes, 1, 4, back, 1);
  const Values got = to_doubles(back);
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], std::nearbyint(values[i])) << i;
}

TEST_P(BlockCodes, OnlyBlocksOutOfRangeBecomeNan) {
  const bool half = dtype() == Dtype::float16;  // has no number above 2^16
  for (const double bad :
       {static_cast<double>(NAN), HUGE_VAL, -HUGE_VAL, half ? HUGE_VAL : 0x1p127}) {
    const Tensor x = random({1, 3 * block}, dtype(), 1, 2);
    Values values = to_doubles(x);
    values[block + 17] = bad;
    for (int i = 2 * block; i < 3 * block; ++i)
      values[static_cast<std::size_t>(i)] = half ? 0 : 0x1p-120;
    from_doubles(x, values);
    for (const int bits : {8, 4}) {
      const Tensor codes = raw(code_bytes(bits, 3 * block)), back = empty({1, 3 * block});
      encode_blocks(stream(), x, 1, bits, codes);
      decode_blocks(stream(), codes, 1, bits, back, 1);
      const Values got = to_doubles(back);
      for (int i = 0; i < 3 * block; ++i) {
        const double value = got[static_cast<std::size_t>(i)];
        if (i < block)
          ASSERT_NEAR(value, values[static_cast<std::size_t>(i)], 0.16);
        else if (i < 2 * block)
          ASSERT_TRUE(std::isnan(value)) << i;
        else
          ASSERT_EQ(value, 0) << i;
      }
    }
  }
}

TEST_P(BlockCodes, RejectOtherShapesAndDtypes) {
  const Tensor x = random({2, block}), codes = raw(2 * code_bytes(8, block));
  encode_blocks(stream(), x, 2, 8, codes);
  EXPECT_THROW(encode_blocks(stream(), x, 2, 4, codes), std::logic_error);
  EXPECT_THROW(encode_blocks(stream(), x, 2, 6, codes), std::logic_error);
  EXPECT_THROW(encode_blocks(stream(), x, 2, 8, codes, 3), std::logic_error);
  EXPECT_THROW(encode_blocks(stream(), random({2, block / 2}), 2, 8, codes), std::logic_error);
  EXPECT_THROW(encode_blocks(stream(), random({2, block}, Dtype::float64), 2, 8, codes),
               std::logic_error);
  EXPECT_THROW(decode_blocks(stream(), codes, 2, 8, x, 2), std::logic_error);
}

constexpr Dtype values_of_blocks[] = {Dtype::float32, Dtype::bfloat16, Dtype::float16};
SHARDMARK_ON_EVERY_DEVICE_IN(BlockCodes, values_of_blocks);

}  // namespace
}  // namespace machine
