#include "suite/training_step/utilization.h"

#include <fmt/format.h>

#include "machine/device/dense_peak.h"

namespace suite {

Utilization utilization(double flops_per_second, double gemm_rate,
                        const machine::ComputeUnits& units, machine::Dtype dtype) {
  Utilization result;
  const double of_gemm = gemm_rate > 0 ? flops_per_second / gemm_rate : 0;
  if (units.compute_capability == 0) {  // a host
    result.of_peak = of_gemm;
    return result;
  }
  result.of_gemm = of_gemm;
  result.peak = machine::dense_peak(units, dtype);
  if (result.peak > 0)
    result.of_peak = flops_per_second / result.peak;
  else
    result.note = fmt::format("no mfu: {}", machine::why_no_dense_peak(units, dtype));
  return result;
}

}  // namespace suite
