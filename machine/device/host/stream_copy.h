#pragma once
// memcpy past the cache (streaming.h): by itself, as the intrinsics' header is a long one.

#include <cstddef>

namespace machine::host {

inline constexpr std::size_t line_bytes = 64;

void stream_copy(void* to, const void* from, std::size_t bytes);

}  // namespace machine::host
