#pragma once
// memcpy that bypasses the cache (streaming.h). Separate, because the intrinsics' header is long.

#include <cstddef>

namespace machine::host {

inline constexpr std::size_t line_bytes = 64;

void stream_copy(void* to, const void* from, std::size_t bytes);

}  // namespace machine::host
