#pragma once
// Rounds a line of 16-bit values from 32 floats, with the bits of Bfloat16 and Half. Loops over
// their constructors do not become a few instructions.

#include <cstdint>
#include <cstring>

#include "machine/device/dtype.h"
#include "machine/device/host/streaming.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace machine::host {

inline constexpr std::int64_t narrow_per_line = 32;

namespace detail {

// Eight floats: a load of more would wait for all stores of the floats to reach the cache.
inline constexpr std::int64_t rounded_at_once = 8;
using Words [[gnu::vector_size(32)]] = std::uint32_t;
using Narrow [[gnu::vector_size(16)]] = std::uint16_t;

inline Narrow rounded(const float* from, Bfloat16) {
  Words word;
  std::memcpy(&word, from, sizeof word);
  const Words nearest = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
  const Words bits = (word & 0x7fffffffu) > 0x7f800000u ? Words{} + 0x7fc0u : nearest;
  return __builtin_convertvector(bits, Narrow);
}

inline Narrow rounded(const float* from, Half) {
  Narrow result;
#ifdef __F16C__
  const __m256 values = _mm256_loadu_ps(from);
  const __m128i nearest = _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(&result, &nearest, sizeof result);
  // The instruction keeps the upper bits of a NaN, Half does not.
  if (_mm256_movemask_ps(_mm256_cmp_ps(values, values, _CMP_UNORD_Q)) == 0) return result;
#endif
  for (int i = 0; i < rounded_at_once; ++i) result[i] = Half(from[i]).bits;
  return result;
}

}  // namespace detail

// streams: past the cache. `to` must then be aligned to a line.
template <bool streams, class T>
void narrow_line(const float* from, T* to) {
  for (std::int64_t i = 0; i < narrow_per_line; i += detail::rounded_at_once) {
    const detail::Narrow narrow = detail::rounded(from + i, T());
    if constexpr (streams)
      stream_quarter(to + i, &narrow);
    else
      std::memcpy(static_cast<void*>(to + i), &narrow, sizeof narrow);
  }
}

}  // namespace machine::host
