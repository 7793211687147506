#pragma once
// Bodies of the elementwise kernels: functors over values (fields.h), the outputs by reference.

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "machine/device/kernels.h"
#include "machine/device/kernels/functions.h"
#include "machine/device/kernels/normal.h"
#include "machine/device/random.h"

namespace machine::kernel {

template <class A>
struct Fill {
  A value;
  SHARDMARK_BOTH void operator()(A& out) const { out = value; }
};

struct Convert {
  template <class From, class To>
  SHARDMARK_BOTH void operator()(From in, To& out) const {
    out = convert<To>(in);
  }
};

template <class A>
struct Add {
  SHARDMARK_BOTH void operator()(A a, A b, A& out) const {
    out = static_cast<A>(wrapping(a) + wrapping(b));
  }
};

template <class A>
struct Multiply {
  SHARDMARK_BOTH void operator()(A a, A b, A& out) const {
    out = static_cast<A>(wrapping(a) * wrapping(b));
  }
};

// The type in which maximum and minimum compare elements T: the elements, or their bits.
template <class T>
using Comparable = std::conditional_t<
    std::is_integral_v<T>, T,
    std::conditional_t<
        sizeof(T) == 1, std::uint8_t,
        std::conditional_t<sizeof(T) == 2, std::uint16_t,
                           std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>>>;

// The maximum of IEEE 754-2019, 9.6, and the minimum -max(-a, -b). NaN wins, -0 is below +0, and
// NaN becomes one pattern, so the bits do not depend on the order. Floating numbers are compared as
// integers (sign and magnitude become two's complement). This vectorizes without conversions or
// branches.
template <class T, bool largest>
struct Extreme {
  using Bits = Comparable<T>;
  SHARDMARK_BOTH void operator()(Bits a, Bits b, Bits& out) const {
    if constexpr (std::is_integral_v<T>) {
      out = (largest ? a < b : b < a) ? b : a;
    } else {
      const Signed x = rank(a), y = rank(b);
      out = static_cast<Bits>(fold(x < y ? y : x) ^ flip);
    }
  }

 private:
  using Signed = std::make_signed_t<Bits>;
  using Limits = std::numeric_limits<Accumulator<T>>;
  // As integers, only NaNs are above it.
  static constexpr Bits infinity = [] {
    if constexpr (requires { T::below_nan; })
      return Bits{T::below_nan};
    else
      return detail::bits_as<Bits>(T(Limits::infinity()));
  }();
  static constexpr Bits quiet_nan = detail::bits_as<Bits>(T(Limits::quiet_NaN()));
  static constexpr Bits magnitude = std::numeric_limits<Signed>::max();
  static constexpr Bits flip = largest ? 0 : static_cast<Bits>(~magnitude);

  // Its own inverse. Reverses the order of magnitudes of negative numbers.
  SHARDMARK_BOTH static Signed fold(Signed value) {
    constexpr int sign = 8 * sizeof(Bits) - 1;
    return static_cast<Signed>(value ^ ((value >> sign) & static_cast<Signed>(magnitude)));
  }
  // Ascends with the value of the number.
  SHARDMARK_BOTH static Signed rank(Bits bits) {
    const Signed folded = fold(static_cast<Signed>(bits ^ flip));
    const bool nan = static_cast<Bits>(bits & magnitude) > infinity;
    return nan ? static_cast<Signed>(quiet_nan) : folded;
  }
};

template <class A>
struct Divide {
  A divisor;
  explicit Divide(std::int64_t by) : divisor(static_cast<A>(by)) {}
  SHARDMARK_BOTH void operator()(A& value) const { value = value / divisor; }
};

// Few processors divide integers in vectors. Half a unit is added away from zero. The quotient is
// then at least 0.5 / divisor from both integers, so the two roundings cannot reach them. The
// conversion truncates.
template <class A>
requires(std::is_integral_v<A> && sizeof(A) <= 4) struct Divide<A> {
  using F = std::conditional_t<sizeof(A) == 1, float, double>;
  using Wide = std::conditional_t<sizeof(A) == 1, std::int32_t, A>;  // vectors cannot become bytes
  F reciprocal;
  explicit Divide(std::int64_t by) : reciprocal(F(1) / static_cast<F>(by)) {}
  SHARDMARK_BOTH void operator()(A& value) const {
    const F x = static_cast<F>(value);
    const F beyond = x + (x < 0 ? F(-0.5) : F(0.5));
    value = static_cast<A>(static_cast<Wide>(beyond * reciprocal));
  }
};

template <class A>
struct Scale {
  A factor;
  SHARDMARK_BOTH void operator()(A in, A& out) const { out = in * factor; }
};

template <class A>
struct Accumulate {
  SHARDMARK_BOTH void operator()(A in, A& out) const { out = out + in; }
};

template <class A>
struct Triad {
  A factor;
  SHARDMARK_BOTH void operator()(A a, A b, A& out) const { out = a + factor * b; }
};

// In double for every tensor type.
template <class A>
struct FillNormal {
  std::uint64_t seed;
  double mean, stddev;
  SHARDMARK_BOTH void operator()(std::uint64_t index, A& out) const {
    const auto words = philox(seed, index);
    out = static_cast<A>(mean + stddev * standard_normal(words[0], words[1]));
  }
};

template <class A>
struct FillUniform {
  std::uint64_t seed;
  double low, high;
  SHARDMARK_BOTH void operator()(std::uint64_t index, A& out) const {
    out = static_cast<A>(low + (high - low) * uniform(seed, index));
  }
};

template <class A>
struct GeluForward {
  SHARDMARK_BOTH void operator()(A x, A& out) const { out = Gelu<A>::value(x); }
};

template <class A>
struct GeluBackward {
  SHARDMARK_BOTH void operator()(A x, A d_out, A& d_x) const {
    d_x = d_out * Gelu<A>::derivative(x);
  }
};

template <class A>
struct CrossEntropy {
  SHARDMARK_BOTH void operator()(A sum_exp, A target, std::int32_t which, A& loss) const {
    loss = which < 0
               ? A(0)
               : static_cast<A>(log(static_cast<double>(sum_exp)) - static_cast<double>(target));
  }
};

}  // namespace machine::kernel
