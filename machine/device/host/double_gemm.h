#pragma once
// c = alpha a b + beta c in double, used by references. Packs blocks of a and b so that a tile of c
// stays in registers during their products (Goto and van de Geijn 2008,
// doi:10.1145/1356052.1356053). The extents fix the order of every sum.

#include "machine/device/gemm.h"

namespace machine::host {

// Matrices of doubles; c.col_stride is 1, no extent zero.
void multiply_doubles(const Matrix& a, const Matrix& b, const Matrix& c, double alpha, double beta,
                      int threads);

}  // namespace machine::host
