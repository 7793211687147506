#pragma once
// memcpy that bypasses the cache (streaming.h), and when it is slower. Separate, because the
// intrinsics' header is long.

#include <cstddef>

namespace machine::host {

inline constexpr std::size_t line_bytes = 64;

void stream_copy(void* to, const void* from, std::size_t bytes);

// Returns whether this core finds `bytes`, in two halves, in a cache again: it copies one half to
// the other and reads the copy. If doing so again is a tenth faster than with a copy that bypasses
// the cache, the halves have stayed there. It makes 20 copies and reads 10 of them.
bool stays_in_cache(std::size_t bytes);

}  // namespace machine::host
