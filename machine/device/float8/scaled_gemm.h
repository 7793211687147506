#pragma once
// Products of matrices in 8-bit codes (scaled_codes.h) by the library of a GPU: c = a b, or c += a
// b, with the scales of both operands. c is float, bfloat16 or half.
//
//   const ScaledMatrix x{codes_of_x, inverse_of_x, Scaling::tensor, false},
//                      w{codes_of_w, inverse_of_w, Scaling::tensor, true};
//   scaled_gemm(stream, x, w, y, false);   // y = x Wᵀ
//
// cuBLASLt sums along the columns of both stored matrices (TN), so a or bᵀ is transposed first if
// it is stored otherwise. It takes scales of blocks in layouts of its own. Both copies are buffers
// during the call: the codes that are transposed, and, for an operand with `outer` rows (a) or
// columns (b) and n blocks along the sum,
//
//   vector_128   4 outer n bytes, if the sum is along the columns of the stored codes
//   square_128   4 ceil(outer/128) ceil4(n), unless it is and 4 divides n
//   vector_32    128 ceil(outer/128) ceil4(n)
//
// with ceil4 the next multiple of 4. Source: cuBLAS, "Narrow Precision Data Types Usage". No GPU
// has run it yet: tests are on virtual GPUs.

#include <cstdint>
#include <string>

#include "machine/device/tensor.h"

namespace machine {

// The elements that share a scale.
enum class Scaling : unsigned char {
  tensor,      // all
  vector_128,  // 128 along the sum
  square_128,  // 128 x 128
  vector_32,   // 32 along the sum, with E8M0 exponents
};

struct ScaledMatrix {
  Tensor codes;    // [rows, cols] in f8e4m3 or f8e5m2
  Tensor inverse;  // the factors that decode them, one for each block
  Scaling scaling = Scaling::tensor;
  bool transposed = false;  // the operand is the transpose
};

// c [rows, cols] = a [rows, inner] b [inner, cols].
struct ScaledProduct {
  std::int64_t rows = 0, cols = 0, inner = 0;
  Scaling a = Scaling::tensor, b = Scaling::tensor;
};

// Returns the reason that the library of a GPU of this compute capability (90 for sm_90; 0: the
// host) does not multiply these codes, or an empty text.
std::string why_not_scaled_gemm(int compute_capability, const ScaledProduct& product);

// Throws std::logic_error if shapes or dtypes do not match, if both operands are f8e5m2, and with
// the text of why_not_scaled_gemm.
void scaled_gemm(Stream& stream, const ScaledMatrix& a, const ScaledMatrix& b, const Tensor& c,
                 bool adds);

// Returns the roundoff of the additions in scaled_gemm: 2^-13 on a GPU, whose tensor cores keep 14
// bits of a sum (DeepSeek-AI 2024, arXiv:2412.19437, section 3.3.2), and 2^-24 on virtual GPUs.
double scaled_gemm_roundoff();

}  // namespace machine
