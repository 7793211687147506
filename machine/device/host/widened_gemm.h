#pragma once
// c = alpha a b + beta c of bfloat16 or half (or float in any layout) as products of floats: widens
// panels of a and b, multiplies them on oneDNN, and rounds the sums once.
//
// Next to a product of floats [m, k] x [k, n], it widens k n elements for each 512 rows, m k for
// each 512 columns, and narrows m n, at some 0.1 ns each: a panel of some 512 rows, columns and
// terms stays in the L2 cache. The number of threads changes the panels, and so may change the
// order of a sum.

#include "machine/device/gemm.h"
#include "machine/device/host/kernels.h"

namespace machine::host {

// c.col_stride is 1, no extent zero.
void multiply_widened(const Matrix& a, const Matrix& b, const Matrix& c, float alpha, float beta,
                      int threads, Scratch& scratch);

}  // namespace machine::host
