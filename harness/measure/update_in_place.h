#pragma once
// The update of arrays in place whose rate is the limit of optimizers.

#include <algorithm>
#include <cstdint>

#include "machine/device/host/fetch.h"

namespace harness {

// Each of three arrays += in. Lines are asked for before they are needed, as optimizers do.
inline void add_to_three(const float* __restrict in, float* __restrict x, float* __restrict y,
                         float* __restrict z, std::int64_t count) {
  constexpr std::int64_t of_line = machine::host::line_bytes / sizeof(float);
  for (std::int64_t begin = 0; begin < count; begin += of_line) {
    for (const float* array : {in, const_cast<const float*>(x), const_cast<const float*>(y),
                               const_cast<const float*>(z)})
      machine::host::fetch_ahead(array + begin);
    const std::int64_t end = std::min(count, begin + of_line);
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      x[i] += in[i];
      y[i] += in[i];
      z[i] += in[i];
    }
  }
}

}  // namespace harness
