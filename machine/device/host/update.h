#pragma once
// An optimizer's pass over its arrays. They mostly exceed the caches, so the pass asks for lines
// before it needs them (fetch.h). Values of 16 bits bypass the cache if the arrays exceed it,
// because their lines would be fetched before they are written.

#include <cstddef>
#include <cstdint>

#include "machine/device/host/fetch.h"
#include "machine/device/host/narrow_line.h"
#include "machine/device/host/streaming.h"
#include "machine/device/kernels/fields.h"

namespace machine::host {

inline constexpr std::int64_t elements_of_step = narrow_per_line;
// A thread's part of larger arrays is not in a cache when it is used next.
inline constexpr std::int64_t cached_by_thread = std::int64_t{32} << 20;

template <class Field>
void fetch_step_ahead(const Field& field, std::int64_t element) {
  constexpr std::int64_t of_line = line_bytes / sizeof(typename Field::Element);
  if constexpr (Field::reads)
    for (std::int64_t i = 0; i < elements_of_step; i += of_line)
      fetch_ahead(field.data + element + i);
}

template <class Step, class... Fields>
void update_elements(std::int64_t begin, std::int64_t end, const Step& step, Fields... fields) {
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) kernel::apply(step, Fields::slot(fields.data + i)...);
}

// Not inlined: launch.h.
template <class Step, class... Fields>
[[gnu::noinline]] void update(std::int64_t begin, std::int64_t end, Step step, Fields... fields) {
  std::int64_t i = begin;
  for (; i + elements_of_step <= end; i += elements_of_step) {
    (fetch_step_ahead(fields, i), ...);
    update_elements(i, i + elements_of_step, step, fields...);
  }
  update_elements(i, end, step, fields...);
}

// Also rounds the master, the first field of the step, to narrower weights. streams: past the
// cache.
template <bool streams, class Step, class Weight, class... States>
[[gnu::noinline]] void update_rounded(std::int64_t begin, std::int64_t end, Step step,
                                      kernel::Out<Weight> weight, kernel::InOut<float> master,
                                      States... states) {
  std::int64_t i = begin;
  for (; i + elements_of_step <= end; i += elements_of_step) {
    (fetch_step_ahead(states, i), ...);
    fetch_step_ahead(master, i);
    update_elements(i, i + elements_of_step, step, master, states...);
    narrow_line<streams>(master.data + i, weight.data + i);
  }
  update_elements(i, end, step, master, states...);
  for (; i < end; ++i) weight.data[i] = Weight(master.data[i]);
  if constexpr (streams) end_streaming();
}

}  // namespace machine::host
