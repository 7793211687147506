#pragma once
// The time of kernels on one GPU of a cluster: the larger of the time to compute and the time to
// move the bytes (Williams, Waterman and Patterson 2009, doi:10.1145/1498765.1498785).

#include "machine/device/dtype.h"
#include "suite/predict/cluster.h"

namespace suite::predict {

// The product of [m, k] and [k, n], `count` times in one kernel.
struct Gemm {
  double m = 0, n = 0, k = 0;
  double count = 1;
  double flops() const { return 2 * m * n * k * count; }
};

double gemm_s(const Gpu& gpu, const Gemm& gemm, machine::Dtype dtype);
// Returns the time of a product of operands in 8 bits, whose result has elements of result_bytes
// bytes. Requires gpu.fp8.
double gemm_of_codes_s(const Gpu& gpu, const Gemm& gemm, double result_bytes);
// bytes: read and written by `kernels` kernels.
double streaming_s(const Gpu& gpu, double bytes, double kernels = 1);

}  // namespace suite::predict
