#pragma once
// Model FLOPs utilization (Chowdhery et al. 2022, "PaLM", appendix B): the FLOP of the model's
// matrix products, without recomputation, over the time and a peak. The peak of a GPU is the dense
// peak that its vendor publishes for the dtype. A second number compares with the best sustained
// matrix product of this GPU, which power and clocks limit. The peak of a host is its measured
// matrix rate.

#include <string>

#include "machine/device/device.h"
#include "machine/device/dtype.h"

namespace suite {

struct Utilization {
  double of_peak = 0, of_gemm = 0;  // 0: unknown
  double peak = 0;                  // FLOP/s of the vendor; 0: a host, or unknown
  std::string note;                 // the reason why a GPU has no of_peak
};

// flops_per_second, gemm_rate: of one rank; 0: not measured.
Utilization utilization(double flops_per_second, double gemm_rate,
                        const machine::ComputeUnits& units, machine::Dtype dtype);

}  // namespace suite
