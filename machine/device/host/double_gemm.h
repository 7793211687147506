#pragma once
// c = alpha a b + beta c in double, which references use: blocks of a and b are packed so that a
// tile of c stays in registers while it runs through them (Goto and van de Geijn 2008,
// doi:10.1145/1356052.1356053). The order of every sum is fixed by the extents alone.

#include "machine/device/gemm.h"

namespace machine::host {

// Of doubles; c.col_stride is 1, no extent zero.
void multiply_doubles(const Matrix& a, const Matrix& b, const Matrix& c, double alpha, double beta,
                      int threads);

}  // namespace machine::host
