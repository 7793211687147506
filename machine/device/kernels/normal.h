#pragma once
// Normal numbers from two words of random bits by Box and Muller (1958), in double. Logarithm and
// cosine have no branches, tables or calls, so that loops vectorize, and all operations are exactly
// rounded, so that the numbers have the same bits on every host and device (functions.h).

#include <cstdint>

#include "machine/device/dtype.h"
#include "machine/device/kernels/functions.h"

namespace machine::kernel {

// Exact below 2^52. Conversions of 64-bit integers do not vectorize on every processor.
SHARDMARK_BOTH inline double double_of(std::uint64_t value) {
  return detail::bits_as<double>(value | 0x4330000000000000u) - 0x1p52;
}

// Within two units of roundoff of log x, for positive normal numbers. x = 2^e m, with m between the
// roots of 1/2 and 2. Sun's fdlibm (e_log.c) has the polynomial, of s = f / (2 + f) with f = m - 1.
[[gnu::always_inline]] SHARDMARK_BOTH inline double logarithm(double x) {
  constexpr std::uint64_t root_half = 0x3fe6a09e667f3bcdu, bias = 1024;
  const std::uint64_t above = detail::bits_as<std::uint64_t>(x) - root_half;
  const double e = double_of((above + (bias << 52)) >> 52) - static_cast<double>(bias);
  const double m = detail::bits_as<double>((above & 0xfffffffffffffu) + root_half);
  const double f = m - 1.0, s = f / (2.0 + f), z = s * s, w = z * z;
  double odd = fused(w, 1.479819860511658591e-01, 1.818357216161805012e-01);
  odd = fused(w, odd, 2.857142874366239149e-01);
  odd = fused(w, odd, 6.666666666666735130e-01);
  double even = fused(w, 1.531383769920937332e-01, 2.222219843214978396e-01);
  even = fused(w, even, 3.999999999940941908e-01);
  const double half_square = 0.5 * f * f;
  // log 2 in two parts. The product of e and the first is exact.
  const double tail =
      fused(s, half_square + fused(z, odd, w * even), e * 1.90821492927058770002e-10);
  return e * 6.93147180369123816490e-01 - ((half_square - tail) - f);
}

// Within two units of roundoff of cos(2 pi turns / 2^32). The quadrant is exact, because turns are
// whole numbers. Polynomials for an eighth of a turn to each side: Sun's fdlibm (k_sin.c, k_cos.c).
[[gnu::always_inline]] SHARDMARK_BOTH inline double cosine_of_turns(std::uint32_t turns) {
  const std::uint64_t moved = std::uint64_t{turns} + (1u << 29), quadrant = moved >> 30;
  const double x = (double_of(moved & 0x3fffffffu) - 0x1p29) * (6.283185307179586 * 0x1p-32);
  const double z = x * x;
  double sine = fused(z, 1.58969099521155010221e-10, -2.50507602534068634195e-08);
  sine = fused(z, sine, 2.75573137070700676789e-06);
  sine = fused(z, sine, -1.98412698298579493134e-04);
  sine = fused(z, sine, 8.33333333332248946124e-03);
  sine = fused(z, sine, -1.66666666666666324348e-01);
  sine = fused(x * z, sine, x);
  double cosine = fused(z, -1.13596475577881948265e-11, 2.08757232129817482790e-09);
  cosine = fused(z, cosine, -2.75573143513906633035e-07);
  cosine = fused(z, cosine, 2.48015872894767294178e-05);
  cosine = fused(z, cosine, -1.38888888888741095749e-03);
  cosine = fused(z, cosine, 4.16666666666666019037e-02);
  cosine = 1.0 - fused(0.5, z, -(z * z * cosine));
  const double size = (quadrant & 1) != 0 ? sine : cosine;
  const std::uint64_t sign = ((quadrant + 1) & 2) << 62;  // in the second and third quadrant
  return detail::bits_as<double>(detail::bits_as<std::uint64_t>(size) ^ sign);
}

SHARDMARK_BOTH inline double standard_normal(std::uint32_t first, std::uint32_t second) {
  const double radius = double_of(std::uint64_t{first} + 1) * 0x1p-32;  // in (0, 1]
  return square_root(-2.0 * logarithm(radius)) * cosine_of_turns(second);
}

}  // namespace machine::kernel
