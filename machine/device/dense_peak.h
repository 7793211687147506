#pragma once
// The dense peak of matrix products that the vendor publishes for a GPU: FLOP per clock and
// multiprocessor of the architecture, times multiprocessors, times the clock. Dense: without the
// doubling for sparse matrices.

#include <string>

#include "machine/device/device.h"
#include "machine/device/dtype.h"

namespace machine {

// FLOP per clock and multiprocessor of the fastest unit that gemm() uses for this dtype: tensor
// cores that accumulate in float, except for float32, which is not rounded to TF32. 0: the
// architecture is unknown, or has no unit for the dtype.
double flop_per_clock(int compute_capability, Dtype dtype);

// FLOP/s. 0: unknown (why_no_dense_peak).
double dense_peak(const ComputeUnits& units, Dtype dtype);

// Returns the reason why dense_peak is 0, or empty.
std::string why_no_dense_peak(const ComputeUnits& units, Dtype dtype);

}  // namespace machine
