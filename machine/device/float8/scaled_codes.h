#pragma once
// Matrices in 8-bit codes with a scale for each block of elements: value ~ code / scale.
//
//   const Blocks blocks{1, 128};                      // 128 elements of a row share a scale
//   largest_magnitudes(stream, x, blocks, amax);      // [rows, cols / 128] floats
//   choose_scales(stream, amax, Dtype::float8_e4m3, {}, scale, inverse);
//   encode(stream, x, blocks, scale, codes);          // f8e4m3
//   decode(stream, codes, blocks, inverse, y);        // float
//
// Blocks at the right and lower border are smaller if the block does not divide the matrix. Scales
// are float factors, or powers of two as uint8: E8M0 (OCP Microscaling Formats 1.0, section 5.4.1),
// 2^(code - 127), with 255 for NaN. x is float, bfloat16 or half. Host and CUDA share one source.
// Throws std::logic_error for shapes or dtypes that do not match.

#include <cstdint>

#include "machine/device/dtype.h"
#include "machine/device/tensor.h"

namespace machine {

struct Blocks {
  std::int64_t rows = 1, cols = 1;  // extents of a block

  std::int64_t down(const Tensor& matrix) const { return (matrix.rows() + rows - 1) / rows; }
  std::int64_t across(const Tensor& matrix) const { return (matrix.cols() + cols - 1) / cols; }
  Shape scales_of(const Tensor& matrix) const { return {down(matrix), across(matrix)}; }
  // Returns the block of a whole matrix.
  static Blocks whole(const Tensor& matrix) { return {matrix.rows(), matrix.cols()}; }
  bool operator==(const Blocks&) const = default;
};

// Returns the largest finite number of a format: 448 of E4M3, 57344 of E5M2.
float largest_of(Dtype float8);
// Returns the exponent of the largest power of two of a format: 8 of E4M3, 15 of E5M2.
int largest_exponent_of(Dtype float8);

// amax [down, across] = the largest |x| of each block, in float. NaN is ignored.
void largest_magnitudes(Stream& stream, const Tensor& x, Blocks blocks, const Tensor& amax);

struct ScaleRule {
  int margin = 0;  // scales leave 2^margin of the range free
  // For a block whose amax is 0 or not finite: keeps `scale` as it is; otherwise the scale is 1.
  bool keeps = false;
};
// scale = largest / amax / 2^margin and inverse = 1 / scale, both rounded to float. If the quotient
// is infinite, the scale is the largest float.
void choose_scales(Stream& stream, const Tensor& amax, Dtype float8, const ScaleRule& rule,
                   const Tensor& scale, const Tensor& inverse);
// exponent (uint8) = E8M0 of 2^(floor(log2(amax)) - largest_exponent_of(float8)), at least 2^-127,
// so that the largest element of a block has the largest exponent of the format (OCP Microscaling
// Formats 1.0, section 6.3). NaN if amax is not finite.
void choose_exponents(Stream& stream, const Tensor& amax, Dtype float8, const Tensor& exponent);

// codes = x scale, rounded to float and then to the codes' dtype: to nearest, ties to even, and
// saturating. scale: float factors, or E8M0 exponents by whose powers x is divided.
void encode(Stream& stream, const Tensor& x, Blocks blocks, const Tensor& scale,
            const Tensor& codes);
// values (float) = codes inverse. inverse: float factors, or the E8M0 exponents of encode.
void decode(Stream& stream, const Tensor& codes, Blocks blocks, const Tensor& inverse,
            const Tensor& values);

}  // namespace machine
