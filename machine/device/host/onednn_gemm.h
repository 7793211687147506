#pragma once
// c = alpha a b + beta c on oneDNN's matmul primitive.

#include "machine/device/gemm.h"

namespace machine::host {

// Returns whether oneDNN multiplies bfloat16: with AMX, and with AVX-512 BF16 on AMD's processors.
// Neither was compared with widened_gemm.h. On an Intel processor without AMX, oneDNN reached 0.6
// of its rate in float with AVX-512 BF16, and 0.2 without.
bool multiplies_bfloat16();

// Returns false, and writes nothing, if oneDNN has no fast kernel for these layouts. a and b are
// float, or bfloat16 if the processor multiplies it; c.col_stride is 1, no extent zero.
bool multiply_by_onednn(const Matrix& a, const Matrix& b, const Matrix& c, float alpha, float beta,
                        int threads);

}  // namespace machine::host
