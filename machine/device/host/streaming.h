#pragma once
// Stores that bypass the cache. A line that is written whole is not read first and evicts no other
// line. Useful if a call's buffers exceed the last-level cache. On processors without such stores,
// and under the sanitizers, which do not see them, these are plain copies.

#include <algorithm>
#include <cstddef>

#include "machine/device/host/stream_copy.h"

#if defined(__SSE2__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SHARDMARK_STREAMING_STORES 1
#include <immintrin.h>
#else
#define SHARDMARK_STREAMING_STORES 0
#include <cstring>
#endif

namespace machine::host {

// Writes a quarter of a line, aligned to itself. The other quarters must follow.
inline void stream_quarter(void* to, const void* from) {
#if SHARDMARK_STREAMING_STORES
  _mm_stream_si128(static_cast<__m128i*>(to), _mm_loadu_si128(static_cast<const __m128i*>(from)));
#else
  std::memcpy(to, from, line_bytes / 4);
#endif
}

// Writes one line. `to` must be aligned to a line.
inline void stream_line(void* to, const void* from) {
#if SHARDMARK_STREAMING_STORES && defined(__AVX__)
  auto* target = static_cast<__m256i*>(to);
  const auto* source = static_cast<const __m256i*>(from);
  _mm256_stream_si256(target, _mm256_loadu_si256(source));
  _mm256_stream_si256(target + 1, _mm256_loadu_si256(source + 1));
#elif SHARDMARK_STREAMING_STORES
  auto* target = static_cast<__m128i*>(to);
  const auto* source = static_cast<const __m128i*>(from);
  for (int i = 0; i < 4; ++i) _mm_stream_si128(target + i, _mm_loadu_si128(source + i));
#else
  std::memcpy(to, from, line_bytes);
#endif
}

// Orders streamed lines before later stores.
inline void end_streaming() {
#if SHARDMARK_STREAMING_STORES
  _mm_sfence();
#endif
}

// `begin` must be aligned to a line.
template <class T>
void stream_fill(T* begin, T* end, T value) {
  constexpr std::ptrdiff_t of_line = line_bytes / sizeof(T);
  alignas(line_bytes) T line[of_line];
  std::fill_n(line, of_line, value);
  for (; end - begin >= of_line; begin += of_line) stream_line(begin, line);
  std::fill(begin, end, value);
  end_streaming();
}

}  // namespace machine::host
