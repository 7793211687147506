// Compares products of codes with the sums in double of the decoded codes, whose values follow from
// their fields. Every block has its own magnitude, so a scale that is left out, of a neighbour, or
// of the other operand shows.

#include "machine/device/float8/scaled_gemm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "machine/device/float8/scaled_codes.h"
#include "machine/testing/on_device.h"

namespace machine {
namespace {

constexpr Dtype e4m3 = Dtype::float8_e4m3, e5m2 = Dtype::float8_e5m2;

double value_of(Dtype float8, int code) {
  const int mantissa_bits = float8 == e4m3 ? 3 : 2, bias = float8 == e4m3 ? 7 : 15;
  const int steps = 1 << mantissa_bits, mantissa = code % steps, exponent = code % 128 / steps;
  const double size = std::ldexp(exponent == 0 ? mantissa : mantissa + steps,
                                 std::max(exponent, 1) - bias - mantissa_bits);
  return code >= 128 ? -size : size;
}

struct Coded {
  ScaledMatrix matrix;
  Values values;  // decoded
};

class ScaledGemm : public OnDevice {
 protected:
  int capability() { return device_->compute_capability(); }
  std::string why_not(const ScaledProduct& product) {
    return why_not_scaled_gemm(capability(), product);
  }
  // sum: of the product, along the columns of the stored matrix.
  Coded coded(std::int64_t rows, std::int64_t cols, Scaling scaling, Dtype float8, bool sum) {
    const Tensor x = random({rows, cols}, Dtype::float32);
    Values drawn = to_doubles(x);
    for (std::int64_t i = 0; i < x.size(); ++i)
      drawn[i] *= std::ldexp(1, static_cast<int>((i / cols / 32 * 3 + i % cols / 32 * 2) % 7) - 3);
    from_doubles(x, drawn);
    const std::int64_t along = scaling == Scaling::vector_32 ? 32 : 128;
    const Blocks blocks = scaling == Scaling::tensor       ? Blocks::whole(x)
                          : scaling == Scaling::square_128 ? Blocks{128, 128}
                          : sum                            ? Blocks{1, along}
                                                           : Blocks{along, 1};
    const bool powers = scaling == Scaling::vector_32;
    const Shape shape = blocks.scales_of(x);
    const Tensor amax = empty(shape, Dtype::float32), scale = empty(shape, Dtype::float32),
                 codes(*device_, float8, {rows, cols}, Category::buffers),
                 inverse(*device_, powers ? Dtype::uint8 : Dtype::float32, shape,
                         Category::buffers);
    largest_magnitudes(stream(), x, blocks, amax);
    if (powers)
      choose_exponents(stream(), amax, float8, inverse);
    else
      choose_scales(stream(), amax, float8, {}, scale, inverse);
    encode(stream(), x, blocks, powers ? inverse : scale, codes);
    std::vector<std::uint8_t> bytes(codes.bytes());
    stream().copy(bytes.data(), codes.data(), bytes.size());
    stream().synchronize();
    const Values factors = to_doubles(inverse);
    Coded result{{codes, inverse, scaling, false}, {}};
    for (std::int64_t i = 0; i < codes.size(); ++i) {
      const double factor = factors[i / cols / blocks.rows * shape[1] + i % cols / blocks.cols];
      result.values.push_back(value_of(float8, bytes[i]) *
                              (powers ? std::ldexp(1, static_cast<int>(factor) - 127) : factor));
    }
    return result;
  }

  struct Question {
    std::int64_t rows, cols, inner;
    Scaling of_a, of_b;
    Dtype a = e4m3, b = e4m3;
    bool a_transposed = false, b_transposed = false, adds = false;
  };
  void check(const Question& q) {
    Coded a = q.a_transposed ? coded(q.inner, q.rows, q.of_a, q.a, false)
                             : coded(q.rows, q.inner, q.of_a, q.a, true),
          b = q.b_transposed ? coded(q.cols, q.inner, q.of_b, q.b, true)
                             : coded(q.inner, q.cols, q.of_b, q.b, false);
    a.matrix.transposed = q.a_transposed;
    b.matrix.transposed = q.b_transposed;
    const Tensor c = q.adds ? random({q.rows, q.cols}) : empty({q.rows, q.cols});
    const Values before = to_doubles(c);
    const std::size_t held = device_->ledger().current(Category::buffers);
    scaled_gemm(stream(), a.matrix, b.matrix, c, q.adds);
    EXPECT_EQ(device_->ledger().current(Category::buffers), held);
    std::vector<Real> sums, errors;
    for (std::int64_t i = 0; i < q.rows; ++i)
      for (std::int64_t j = 0; j < q.cols; ++j) {
        Real sum = q.adds ? before[i * q.cols + j] : 0, size = std::abs(sum);
        for (std::int64_t k = 0; k < q.inner; ++k) {
          const Real term =
              static_cast<Real>(a.values[q.a_transposed ? k * q.rows + i : i * q.inner + k]) *
              b.values[q.b_transposed ? j * q.inner + k : k * q.cols + j];
          sum += term;
          size += std::abs(term);
        }
        sums.push_back(sum);
        // A term is multiplied by two factors that are rounded together.
        errors.push_back(static_cast<Real>(q.inner + 3) * scaled_gemm_roundoff() * size);
      }
    expect_within(to_doubles(c), sums, errors, c.dtype());
  }
};

using enum Scaling;
constexpr std::pair<Scaling, Scaling> pairs[] = {{tensor, tensor},
                                                 {vector_128, vector_128},
                                                 {vector_128, square_128},
                                                 {square_128, vector_128},
                                                 {vector_32, vector_32}};

TEST_P(ScaledGemm, EveryTransposeAndScaleOnAGpuThatHasIt) {
  for (const auto& [of_a, of_b] : pairs)
    for (const int transposes : {0, 1, 2, 3}) {
      if (dtype() != Dtype::float32 && transposes > 0) continue;
      const Question question{.rows = 16,
                              .cols = 144,
                              .inner = 272,
                              .of_a = of_a,
                              .of_b = of_b,
                              .a = transposes == 1 ? e5m2 : e4m3,
                              .b = transposes == 2 ? e5m2 : e4m3,
                              .a_transposed = (transposes & 1) != 0,
                              .b_transposed = (transposes & 2) != 0,
                              .adds = dtype() == Dtype::float32 && transposes % 2 == 1};
      SCOPED_TRACE(testing::Message() << "scales " << static_cast<int>(of_a) << " and "
                                      << static_cast<int>(of_b) << ", transposes " << transposes);
      if (why_not({question.rows, question.cols, question.inner, of_a, of_b}).empty()) {
        check(question);
      } else if (transposes == 0) {
        EXPECT_THROW(check(question), std::logic_error);
      }
    }
}

TEST_P(ScaledGemm, BlocksThatNeedNoPadding) {
  if (dtype() != Dtype::float32) GTEST_SKIP();
  for (const auto& [of_a, of_b] : pairs)
    if (why_not({16, 128, 512, of_a, of_b}).empty())
      check({.rows = 16,
             .cols = 128,
             .inner = 512,
             .of_a = of_a,
             .of_b = of_b,
             .b_transposed = true});
}

TEST_P(ScaledGemm, ReasonsNameTheRequirement) {
  const auto why = [](int capability, ScaledProduct product) {
    return why_not_scaled_gemm(capability, product);
  };
  EXPECT_EQ(why(0, {16, 16, 16}), "products of 8-bit codes require a GPU (got the host)");
  EXPECT_EQ(why(80, {16, 16, 16}),
            "products of 8-bit codes require compute capability 8.9 or more (got 8.0)");
  for (const int capability : {89, 90, 100, 120}) EXPECT_EQ(why(capability, {16, 32, 48}), "");
  EXPECT_EQ(why(90, {16, 40, 72}),
            "products of 8-bit codes require extents that 16 divides (got 16 x 72 x 40)");
  EXPECT_EQ(why(90, {16, 16, 0}), "products of 8-bit codes require elements");
  EXPECT_EQ(why(90, {16, 16, 16, vector_128, square_128}), "");
  EXPECT_EQ(why(100, {16, 16, 16, vector_128, square_128}),
            "scales of 128 elements require compute capability 9.0 (got 10.0)");
  EXPECT_EQ(why(90, {16, 16, 16, vector_32, vector_32}),
            "scales of 32 elements require compute capability 10.0 or more (got 9.0)");
  EXPECT_EQ(why(100, {16, 16, 16, vector_32, vector_32}), "");
}

TEST_P(ScaledGemm, RejectsOtherShapesAndDtypes) {
  const Coded a = coded(16, 32, tensor, e4m3, true), b = coded(32, 48, tensor, e4m3, false),
              wide = coded(16, 32, tensor, e5m2, true), other = coded(32, 48, tensor, e5m2, false);
  const auto multiply = [&](const ScaledMatrix& left, const ScaledMatrix& right, const Tensor& c) {
    scaled_gemm(stream(), left, right, c, false);
  };
  const Tensor c = empty({16, 48});
  EXPECT_THROW(multiply(a.matrix, b.matrix, empty({16, 32})), std::logic_error);
  EXPECT_THROW(multiply(wide.matrix, other.matrix, c), std::logic_error);
  EXPECT_THROW(multiply(a.matrix, b.matrix, empty({16, 48}, Dtype::float64)), std::logic_error);
  ScaledMatrix blocks = a.matrix;
  blocks.scaling = vector_32;
  EXPECT_THROW(multiply(blocks, b.matrix, c), std::logic_error);
}

constexpr Dtype results[] = {Dtype::float32, Dtype::bfloat16, Dtype::float16};
SHARDMARK_ON_EVERY_DEVICE_IN(ScaledGemm, results);

}  // namespace
}  // namespace machine
