#pragma once
// The bodies of scaled_codes.h and their launches, for host and CUDA: a row of the matrix, or a
// block of it, is a row of the launch.

#include <cstdint>
#include <limits>

#include "machine/device/float8/scaled_codes.h"
#include "machine/device/kernels/fields.h"

namespace machine::kernel {

// The range of a format.
struct Float8Range {
  float largest;
  int largest_exponent;
};

// Finds the block of an element.
struct Grid {
  std::int64_t rows, cols, block_rows, block_cols;

  SHARDMARK_BOTH std::int64_t across() const { return (cols + block_cols - 1) / block_cols; }
  SHARDMARK_BOTH std::int64_t down() const { return (rows + block_rows - 1) / block_rows; }
};

// 2^(exponent - 127), a subnormal number for exponent 0, and NaN for 255.
SHARDMARK_BOTH inline float power_of(std::uint8_t exponent) {
  if (exponent == 0xff) return detail::bits_as<float>(0x7fc00000u);
  return detail::bits_as<float>(exponent == 0 ? 0x00400000u : std::uint32_t{exponent} << 23);
}

SHARDMARK_BOTH inline float multiplier(float scale) { return scale; }
// Divides by the power of two, exactly: 2^-127 and 2^127 are each other's inverse.
SHARDMARK_BOTH inline float multiplier(std::uint8_t exponent) {
  return exponent == 0xff ? power_of(0xff) : power_of(static_cast<std::uint8_t>(254 - exponent));
}
SHARDMARK_BOTH inline float factor(float inverse) { return inverse; }
SHARDMARK_BOTH inline float factor(std::uint8_t exponent) { return power_of(exponent); }

template <class T>
struct BlockMagnitude {
  const T* x;
  Grid grid;
  float* amax;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t block, const Lanes& lanes) const {
    const std::int64_t row = block / grid.across() * grid.block_rows,
                       col = block % grid.across() * grid.block_cols;
    const std::int64_t height =
        grid.rows - row < grid.block_rows ? grid.rows - row : grid.block_rows;
    const std::int64_t width =
        grid.cols - col < grid.block_cols ? grid.cols - col : grid.block_cols;
    const T* const first = x + row * grid.cols + col;
    const std::int64_t cols = grid.cols;
    const float largest = lanes.template max<float>(height * width, [=](std::int64_t i) {
      const float value = widen(first[i / width * cols + i % width]);
      return detail::bits_as<float>(detail::bits_as<std::uint32_t>(value) & 0x7fffffffu);
    });
    if (lanes.leads()) amax[block] = largest < 0 ? 0 : largest;  // all are NaN
  }
};

struct LinearScale {
  const float* amax;
  float largest, power_of_margin;
  bool keeps;
  float *scale, *inverse;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t row, const Lanes& lanes) const {
    if (!lanes.leads()) return;
    constexpr float infinity = std::numeric_limits<float>::infinity();
    const float of_block = amax[row];
    float chosen = keeps ? scale[row] : 1.0f;
    if (of_block > 0 && of_block < infinity) {
      chosen = largest / of_block / power_of_margin;
      if (chosen == infinity) chosen = std::numeric_limits<float>::max();
    }
    scale[row] = chosen;
    inverse[row] = 1.0f / chosen;
  }
};

struct ExponentScale {
  const float* amax;
  int largest_exponent;
  std::uint8_t* exponent;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t row, const Lanes& lanes) const {
    if (!lanes.leads()) return;
    const std::uint32_t bits = detail::bits_as<std::uint32_t>(amax[row]) & 0x7fffffffu;
    const int biased = static_cast<int>(bits >> 23) - largest_exponent;
    exponent[row] = bits >= 0x7f800000u ? std::uint8_t{0xff}
                                        : static_cast<std::uint8_t>(biased < 0 ? 0 : biased);
  }
};

template <class T, class S, class F>
struct Encode {
  const T* x;
  const S* scale;
  Grid grid;
  F* codes;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t row, const Lanes& lanes) const {
    const S* const scales = scale + row / grid.block_rows * grid.across();
    const std::int64_t base = row * grid.cols, width = grid.block_cols;
    const T* const from = x + base;
    F* const to = codes + base;
    lanes.each(grid.cols,
               [=](std::int64_t c) { to[c] = F(widen(from[c]) * multiplier(scales[c / width])); });
  }
};

template <class F, class S>
struct Decode {
  const F* codes;
  const S* inverse;
  Grid grid;
  float* values;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t row, const Lanes& lanes) const {
    const S* const factors = inverse + row / grid.block_rows * grid.across();
    const std::int64_t base = row * grid.cols, width = grid.block_cols;
    const F* const from = codes + base;
    float* const to = values + base;
    lanes.each(grid.cols, [=](std::int64_t c) {
      to[c] = static_cast<float>(from[c]) * factor(factors[c / width]);
    });
  }
};

inline Grid grid_of(const Tensor& matrix, Blocks blocks) {
  return {matrix.rows(), matrix.cols(), blocks.rows, blocks.cols};
}

// Calls visitor(T{}) with the type of values that have codes.
template <class Visitor>
void visit_values(Dtype dtype, const Visitor& visitor) {
  if (dtype == Dtype::float32) return visitor(float{});
  if (dtype == Dtype::bfloat16) return visitor(Bfloat16{});
  visitor(Half{});
}
template <class Visitor>
void visit_codes(Dtype dtype, const Visitor& visitor) {
  if (dtype == Dtype::float8_e4m3) return visitor(Float8E4M3{});
  visitor(Float8E5M2{});
}
template <class Visitor>
void visit_scales(Dtype dtype, const Visitor& visitor) {
  if (dtype == Dtype::float32) return visitor(float{});
  visitor(std::uint8_t{});
}

// The functions of scaled_codes.h, whose arguments are checked.
template <class Launch>
struct ScaledCodes {
  static void magnitudes(const Launch& launch, const Tensor& x, Blocks blocks, const Tensor& amax) {
    const Grid grid = grid_of(x, blocks);
    visit_values(x.dtype(), [&]<class T>(T) {
      launch.rows(amax.size(), blocks.rows * blocks.cols,
                  BlockMagnitude<T>{x.as<T>(), grid, amax.as<float>()});
    });
  }
  static void scales(const Launch& launch, const Tensor& amax, Float8Range range,
                     const ScaleRule& rule, const Tensor& scale, const Tensor& inverse) {
    float margin = 1;
    for (int i = 0; i < rule.margin; ++i) margin *= 2;
    for (int i = 0; i > rule.margin; --i) margin /= 2;
    launch.rows(amax.size(), 1,
                LinearScale{amax.as<float>(), range.largest, margin, rule.keeps, scale.as<float>(),
                            inverse.as<float>()});
  }
  static void exponents(const Launch& launch, const Tensor& amax, Float8Range range,
                        const Tensor& exponent) {
    launch.rows(
        amax.size(), 1,
        ExponentScale{amax.as<float>(), range.largest_exponent, exponent.as<std::uint8_t>()});
  }
  static void encode(const Launch& launch, const Tensor& x, Blocks blocks, const Tensor& scale,
                     const Tensor& codes) {
    const Grid grid = grid_of(x, blocks);
    visit_values(x.dtype(), [&]<class T>(T) {
      visit_scales(scale.dtype(), [&]<class S>(S) {
        visit_codes(codes.dtype(), [&]<class F>(F) {
          launch.rows(grid.rows, grid.cols,
                      Encode<T, S, F>{x.as<T>(), scale.as<S>(), grid, codes.as<F>()});
        });
      });
    });
  }
  static void decode(const Launch& launch, const Tensor& codes, Blocks blocks,
                     const Tensor& inverse, const Tensor& values) {
    const Grid grid = grid_of(codes, blocks);
    visit_scales(inverse.dtype(), [&]<class S>(S) {
      visit_codes(codes.dtype(), [&]<class F>(F) {
        launch.rows(grid.rows, grid.cols,
                    Decode<F, S>{codes.as<F>(), inverse.as<S>(), grid, values.as<float>()});
      });
    });
  }
};

}  // namespace machine::kernel
