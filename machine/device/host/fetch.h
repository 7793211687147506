#pragma once
// Asks for cache lines before they are needed. The processor's own prefetching follows arrays
// within a page only.

#include <cstddef>
#include <cstdint>

#include "machine/device/host/stream_copy.h"

namespace machine::host {

inline constexpr std::size_t fetched_ahead = 1024;  // bytes of each array

// Asks for the line fetched_ahead bytes after `at`, which may be past the end of the array.
inline void fetch_ahead(const void* at) {
  const std::uintptr_t line = reinterpret_cast<std::uintptr_t>(at) + fetched_ahead;
  __builtin_prefetch(reinterpret_cast<const void*>(line));
}

// Asks for lines to be written, all at once. A peer has read them before, so each has to be taken
// from its cache.
inline void fetch_to_write(std::byte* to, std::size_t bytes) {
  for (std::size_t line = 0; line < bytes; line += line_bytes) __builtin_prefetch(to + line, 1);
}

}  // namespace machine::host
