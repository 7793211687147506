#pragma once
// Splits a loop among OpenMP threads: contiguous parts of nearly equal size.

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace machine::host {

// Calls part(begin, end) for parts that cover [0, count), each on its own thread. Parts except the
// last are multiples of `grain`. A part has enough work for a thread start, if an item costs as
// much as moving bytes_per_item. A part must not throw or depend on the other parts' borders.
template <class Part>
void parallel(int threads, std::int64_t count, std::int64_t bytes_per_item, std::int64_t grain,
              const Part& part) {
  constexpr std::int64_t least_bytes = 256 << 10;  // per part: some ten microseconds
#ifdef __SANITIZE_THREAD__
  threads = 1;  // the OpenMP runtime's own synchronization is invisible to the thread sanitizer
#endif
  const std::int64_t grains = (count + grain - 1) / grain;
  const std::int64_t worth = count * bytes_per_item / least_bytes;
  const std::int64_t parts = std::min({std::int64_t{threads}, grains, worth});
  if (parts <= 1) {
    if (count > 0) part(std::int64_t{0}, count);
    return;
  }
#pragma omp parallel for schedule(static, 1) num_threads(static_cast <int>(parts))
  for (std::int64_t i = 0; i < parts; ++i) {
    const std::int64_t begin = grains * i / parts * grain;
    const std::int64_t end = std::min(count, grains * (i + 1) / parts * grain);
    part(begin, end);
  }
}

// Returns the index of the calling thread in its parallel loop.
inline int thread_index() { return omp_get_thread_num(); }

}  // namespace machine::host
