#pragma once
// The update of arrays in place whose rate is the limit of optimizers.

#include <algorithm>
#include <cstdint>

#include "machine/device/host/stream_copy.h"

namespace harness {

// Each of three arrays += in. Lines are asked for before they are needed, as optimizers do, because
// the processor's own prefetching follows arrays within a page only.
inline void add_to_three(const float* __restrict in, float* __restrict x, float* __restrict y,
                         float* __restrict z, std::int64_t count) {
  constexpr std::int64_t of_line = machine::host::line_bytes / sizeof(float);
  constexpr std::uintptr_t ahead = 1024;
  for (std::int64_t begin = 0; begin < count; begin += of_line) {
    for (const float* array : {in, const_cast<const float*>(x), const_cast<const float*>(y),
                               const_cast<const float*>(z)})
      __builtin_prefetch(
          reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(array + begin) + ahead));
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
