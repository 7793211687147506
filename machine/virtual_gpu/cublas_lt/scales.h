#pragma once
// The scales of an operand of 8-bit codes, in the modes and layouts of the documentation (cuBLAS,
// "Scaling factors layouts" and "1D Block Scaling Factors Layout").

#include <cublasLt.h>

#include <cmath>
#include <cstdint>

namespace machine::virtual_gpu {

struct Scales {
  std::int64_t mode;
  std::int64_t outer, depth;  // outer: the rows of op(A), or the columns of op(B)
  std::int64_t at;            // the address

  static std::int64_t parts(std::int64_t extent, std::int64_t part) {
    return (extent + part - 1) / part;
  }
  // Returns the elements along the sum that share a scale.
  std::int64_t block() const {
    return mode == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F    ? depth
           : mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 ? 32
                                                              : 128;
  }
  std::int64_t blocks() const { return parts(depth, block()); }
  std::int64_t padded() const { return parts(blocks(), 4) * 4; }
  std::size_t bytes() const {
    return static_cast<std::size_t>(
        mode == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F       ? 4
        : mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F     ? 4 * outer * blocks()
        : mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F ? 4 * padded() * parts(outer, 128)
                                                              : padded() * parts(outer, 128) * 128);
  }
  float factor(std::int64_t row, std::int64_t part) const {
    const auto* const floats = reinterpret_cast<const float*>(at);
    if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F) return floats[0];
    if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F) return floats[part * outer + row];
    if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F)
      return floats[row / 128 * padded() + part];
    const int exponent = code(row, part);
    return exponent == 255 ? NAN : std::ldexp(1.0f, exponent - 127);
  }
  // Tiles of 128 rows and 4 codes are stored whole. Their padding must be zero.
  bool padding_is_zero() const {
    if (mode != CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0) return true;
    for (std::int64_t row = 0; row < parts(outer, 128) * 128; ++row)
      for (std::int64_t part = row < outer ? blocks() : 0; part < padded(); ++part)
        if (code(row, part) != 0) return false;
    return true;
  }

 private:
  int code(std::int64_t row, std::int64_t part) const {
    const std::int64_t tile = row / 128 * padded() / 4 + part / 4;
    return reinterpret_cast<const std::uint8_t*>(
        at)[tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + part % 4];
  }
};

}  // namespace machine::virtual_gpu
