#pragma once
// The functions that kernels apply to values. They use IEEE additions and products that compilers
// may not fuse here (-ffp-contract=off, --fmad=false). Fused operations are explicit. So float
// results have the same bits on every host and device, in vector loops and in remainders.

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "machine/device/dtype.h"

namespace machine::kernel {

// If an integer sum or product may overflow: the value as unsigned, for which wrap-around is
// defined. (uint8 is promoted to int, which holds every sum and product of two.)
template <class A>
SHARDMARK_BOTH constexpr auto wrapping(A value) {
  if constexpr (std::is_integral_v<A>) {
    return static_cast<std::make_unsigned_t<A>>(value);
  } else {
    return value;
  }
}

// a * b + c rounded once. Explicit, so that it is the same everywhere.
SHARDMARK_BOTH inline float fused(float a, float b, float c) { return fmaf(a, b, c); }
SHARDMARK_BOTH inline double fused(double a, double b, double c) { return fma(a, b, c); }

// e^x within 4 units of roundoff. Without branches or tables so that it vectorizes, and inlined,
// because loops with calls do not vectorize. Reduction by multiples of log 2 in two parts and a
// polynomial after Moshier's Cephes library (expf).
[[gnu::always_inline]] SHARDMARK_BOTH inline float exponential(float x) {
  x = x > 89.0f ? 89.0f : x;      // above 88.73: infinity; NaN passes both comparisons
  x = x < -104.0f ? -104.0f : x;  // below -103.98: zero
  // 1.5 * 2^23 + 2 * 127: the sum's last bits are the nearest integer n and two exponents' bias.
  const float shift = 12583166.0f;
  const float shifted = fused(x, 1.44269504088896341f, shift);
  const float n = shifted - shift;
  const float r = fused(n, 2.12194440e-4f, fused(n, -0.693359375f, x));
  float p = fused(r, 1.9875691500e-4f, 1.3981999507e-3f);
  p = fused(p, r, 8.3334519073e-3f);
  p = fused(p, r, 4.1665795894e-2f);
  p = fused(p, r, 1.6666665459e-1f);
  p = fused(p, r, 5.0000001201e-1f);
  p = fused(p, r * r, r) + 1.0f;
  // Two factors, because 2^n may be out of range. The products are exact unless subnormal. Bits
  // above a factor's exponent and sign are shifted out.
  const std::uint32_t exponents = detail::bits_as<std::uint32_t>(shifted), half = exponents >> 1;
  return p * detail::bits_as<float>(half << 23) * detail::bits_as<float>((exponents - half) << 23);
}
SHARDMARK_BOTH inline double exponential(double x) { return exp(x); }

SHARDMARK_BOTH inline float square_root(float x) { return sqrtf(x); }
SHARDMARK_BOTH inline double square_root(double x) { return sqrt(x); }

// The tanh form of GELU is x * sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3). This form loses
// no digits if tanh is near -1.
template <class A>
struct Gelu {
  static constexpr A linear = A(1.5957691216057308);  // 2 sqrt(2/pi)
  static constexpr A cubic = A(0.044715);

  SHARDMARK_BOTH static A value(A x) {
    const A twice_u = linear * (x + cubic * (x * x * x));
    return x / (A(1) + exponential(-twice_u));
  }
  SHARDMARK_BOTH static A derivative(A x) {
    const A twice_u = linear * (x + cubic * (x * x * x));
    const A slope = linear * (A(1) + A(3) * cubic * (x * x));
    const A decay = exponential(twice_u < 0 ? twice_u : -twice_u);  // at most 1
    const A sum = A(1) + decay;
    const A sigmoid = (twice_u < 0 ? decay : A(1)) / sum;
    // If decay is zero, slope may be infinite.
    return decay > 0 ? sigmoid + x * (decay / (sum * sum)) * slope : sigmoid;
  }
};

// Returns the number of keys that a sequence has: its length, or all `keys` without lengths.
SHARDMARK_BOTH constexpr std::int64_t keys_of(const std::int32_t* lengths, std::int64_t sequence,
                                              std::int64_t keys) {
  if (!lengths) return keys;
  const std::int64_t length = lengths[sequence];
  return length < 0 ? 0 : length < keys ? length : keys;
}

}  // namespace machine::kernel
