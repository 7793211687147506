#pragma once
// Element types of tensors, with the names of nccl-tests. Every kernel supports float, bfloat16,
// half and double. Collectives also move and reduce f8e4m3, f8e5m2, int8, uint8, int32, uint32,
// int64 and uint64.
//
// Bfloat16, Half and the two 8-bit formats are storage formats. They convert to and from float
// (round to nearest, ties to even; Inf and NaN kept). They have no arithmetic, so every reduction
// in Shardmark specifies its rounding. Values too large for 8 bits, including infinity, become the
// largest finite number, as in CUDA's conversions.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#ifdef __CUDACC__
#define SHARDMARK_BOTH __host__ __device__
#else
#define SHARDMARK_BOTH
#endif

namespace machine {

enum class Dtype : std::uint8_t {
  float32,
  bfloat16,
  float16,
  float64,
  float8_e4m3,
  float8_e5m2,
  int8,
  uint8,
  int32,
  uint32,
  int64,
  uint64
};
// Every kernel supports these.
inline constexpr Dtype floating_dtypes[] = {Dtype::float32, Dtype::bfloat16, Dtype::float16,
                                            Dtype::float64};
inline constexpr Dtype every_dtype[] = {Dtype::float32, Dtype::bfloat16,    Dtype::float16,
                                        Dtype::float64, Dtype::float8_e4m3, Dtype::float8_e5m2,
                                        Dtype::int8,    Dtype::uint8,       Dtype::int32,
                                        Dtype::uint32,  Dtype::int64,       Dtype::uint64};

constexpr bool is_floating(Dtype dtype) { return dtype <= Dtype::float8_e5m2; }
constexpr bool has_every_kernel(Dtype dtype) { return dtype <= Dtype::float64; }

namespace detail {
template <class To, class From>
SHARDMARK_BOTH constexpr To bits_as(From from) {
  return __builtin_bit_cast(To, from);
}
}  // namespace detail

struct Bfloat16 {
  std::uint16_t bits = 0;

  Bfloat16() = default;
  SHARDMARK_BOTH constexpr explicit Bfloat16(float value) {
    std::uint32_t word = detail::bits_as<std::uint32_t>(value);
    const bool nan = (word & 0x7fffffffu) > 0x7f800000u;
    word += 0x7fffu + ((word >> 16) & 1u);
    bits = nan ? std::uint16_t{0x7fc0} : static_cast<std::uint16_t>(word >> 16);
  }
  SHARDMARK_BOTH constexpr explicit operator float() const {
    return detail::bits_as<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

struct Half {
  std::uint16_t bits = 0;

  Half() = default;
  // Both directions select among values that are all computed, so that loops over Half vectorize.
  SHARDMARK_BOTH constexpr explicit Half(float value) {
    const std::uint32_t word = detail::bits_as<std::uint32_t>(value);
    const std::uint32_t sign = (word >> 16) & 0x8000u;
    const std::uint32_t magnitude = word & 0x7fffffffu;
    // Normal numbers: rebias the exponent, round the mantissa.
    const std::uint32_t rebiased = magnitude - 0x38000000u;
    const std::uint32_t normal = (rebiased + 0x0fffu + ((rebiased >> 13) & 1u)) >> 13;
    // Subnormal numbers: the last bit of 0.5f is 2^-24, so the addition rounds at Half's last bit.
    const bool small = magnitude < 0x38800000u;
    const float lifted = detail::bits_as<float>(small ? magnitude : 0u) + 0.5f;
    const std::uint32_t subnormal = detail::bits_as<std::uint32_t>(lifted) - 0x3f000000u;
    std::uint32_t half = small ? subnormal : normal;
    half = magnitude >= 0x477ff000u ? 0x7c00u : half;  // 65520 and above round to infinity
    half = magnitude > 0x7f800000u ? 0x7e00u : half;
    bits = static_cast<std::uint16_t>(sign | half);
  }
  SHARDMARK_BOTH constexpr explicit operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fffu) << 13;
    // The product rebiases the exponent exactly and normalizes subnormal numbers.
    const float finite = detail::bits_as<float>(magnitude) * 0x1p112f;
    const std::uint32_t word =
        magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : detail::bits_as<std::uint32_t>(finite);
    return detail::bits_as<float>(sign | word);
  }
};

// The formats of Micikevicius et al. 2022 (arXiv:2209.05433). E4M3 has no infinity. It is NaN only
// if all bits but the sign are set. E5M2 is the upper half of a Half.
template <int mantissa_bits>
struct Float8 {
  static constexpr int bias = mantissa_bits == 3 ? 7 : 15;
  static constexpr std::uint32_t largest = mantissa_bits == 3 ? 0x7eu : 0x7bu, nan = 0x7fu;
  static constexpr std::uint32_t below_nan = mantissa_bits == 3 ? 0x7eu : 0x7cu;

  std::uint8_t bits = 0;

  Float8() = default;
  SHARDMARK_BOTH constexpr explicit Float8(float value) {  // like Half's
    constexpr int dropped = 23 - mantissa_bits;
    constexpr std::uint32_t rebias = std::uint32_t{127 - bias} << 23;
    constexpr std::uint32_t least_normal = rebias + (1u << 23);
    // A float whose last bit is the smallest subnormal number, 2^(1 - bias - mantissa_bits).
    constexpr std::uint32_t lift = std::uint32_t{127 + 24 - bias - mantissa_bits} << 23;
    const std::uint32_t word = detail::bits_as<std::uint32_t>(value);
    const std::uint32_t magnitude = word & 0x7fffffffu;
    const std::uint32_t rebiased = magnitude - rebias;
    const std::uint32_t normal =
        (rebiased + (1u << (dropped - 1)) - 1u + ((rebiased >> dropped) & 1u)) >> dropped;
    const bool small = magnitude < least_normal;
    const float lifted =
        detail::bits_as<float>(small ? magnitude : 0u) + detail::bits_as<float>(lift);
    const std::uint32_t subnormal = detail::bits_as<std::uint32_t>(lifted) - lift;
    std::uint32_t code = small ? subnormal : normal;
    code = code > largest ? largest : code;
    code = magnitude > 0x7f800000u ? nan : code;
    bits = static_cast<std::uint8_t>((word >> 24 & 0x80u) | code);
  }
  SHARDMARK_BOTH constexpr explicit operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80u) << 24;
    const std::uint32_t code = bits & 0x7fu;
    const std::uint32_t magnitude = code << (23 - mantissa_bits);
    // The product rebiases the exponent exactly and normalizes subnormal numbers.
    constexpr float rebias = mantissa_bits == 3 ? 0x1p120f : 0x1p112f;
    const std::uint32_t finite =
        detail::bits_as<std::uint32_t>(detail::bits_as<float>(magnitude) * rebias);
    const std::uint32_t special = mantissa_bits == 3 ? 0x7fc00000u : magnitude | 0x7f800000u;
    return detail::bits_as<float>(sign | (code > largest ? special : finite));
  }
};
using Float8E4M3 = Float8<3>;
using Float8E5M2 = Float8<2>;

static_assert(static_cast<float>(Float8E4M3(448.0f)) == 448.0f);
static_assert(static_cast<float>(Float8E4M3(1e6f)) == 448.0f);
static_assert(static_cast<float>(Float8E5M2(57344.0f)) == 57344.0f);
static_assert(static_cast<float>(Float8E5M2(0x1p-16f)) == 0x1p-16f);
static_assert(static_cast<float>(Bfloat16(1.00390625f)) == 1.0f);  // tie to even
static_assert(static_cast<float>(Half(65504.0f)) == 65504.0f);
static_assert(static_cast<float>(Half(5.9604644775390625e-8f)) == 5.9604644775390625e-8f);

namespace detail {
struct DtypeFacts {
  std::string_view name;
  std::size_t bytes;
  double unit_roundoff = 0;
};
inline constexpr DtypeFacts dtypes[] = {
    {"float", 4, 0x1p-24}, {"bfloat16", 2, 0x1p-8}, {"half", 2, 0x1p-11}, {"double", 8, 0x1p-53},
    {"f8e4m3", 1, 0x1p-4}, {"f8e5m2", 1, 0x1p-3},   {"int8", 1},          {"uint8", 1},
    {"int32", 4},          {"uint32", 4},           {"int64", 8},         {"uint64", 8}};
constexpr const DtypeFacts& facts(Dtype dtype) { return dtypes[static_cast<std::size_t>(dtype)]; }
}  // namespace detail

constexpr std::size_t size_of(Dtype dtype) { return detail::facts(dtype).bytes; }
constexpr std::string_view name(Dtype dtype) { return detail::facts(dtype).name; }
// Returns half the distance from 1 to the next number: the largest relative error of one rounding.
// Zero for integers, which wrap around and are not rounded.
constexpr double unit_roundoff(Dtype dtype) { return detail::facts(dtype).unit_roundoff; }

template <class T>
inline constexpr Dtype dtype_of = [] {
  if constexpr (std::is_same_v<T, float>) return Dtype::float32;
  if constexpr (std::is_same_v<T, Bfloat16>) return Dtype::bfloat16;
  if constexpr (std::is_same_v<T, Half>) return Dtype::float16;
  if constexpr (std::is_same_v<T, double>) return Dtype::float64;
  if constexpr (std::is_same_v<T, Float8E4M3>) return Dtype::float8_e4m3;
  if constexpr (std::is_same_v<T, Float8E5M2>) return Dtype::float8_e5m2;
  if constexpr (std::is_same_v<T, std::int8_t>) return Dtype::int8;
  if constexpr (std::is_same_v<T, std::uint8_t>) return Dtype::uint8;
  if constexpr (std::is_same_v<T, std::int32_t>) return Dtype::int32;
  if constexpr (std::is_same_v<T, std::uint32_t>) return Dtype::uint32;
  if constexpr (std::is_same_v<T, std::int64_t>) return Dtype::int64;
  if constexpr (std::is_same_v<T, std::uint64_t>) return Dtype::uint64;
}();

template <class T>
inline constexpr bool is_narrow = std::is_same_v<T, Bfloat16> || std::is_same_v<T, Half> ||
                                  std::is_same_v<T, Float8E4M3> || std::is_same_v<T, Float8E5M2>;

// The type of arithmetic and sums: float for narrower floating types, else the element's type.
template <class T>
using Accumulator = std::conditional_t<is_narrow<T>, float, T>;

// Converts between accumulators. A floating value is truncated to an integer. Outside the range it
// becomes the nearest integer, and NaN becomes zero. Integers convert to integers modulo 2^bits.
template <class To, class From>
SHARDMARK_BOTH constexpr To convert(From from) {
  if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    using Limits = std::numeric_limits<To>;
    // Powers of two, so both are exact. Values in between fit.
    constexpr From above = static_cast<From>((Limits::max() >> 1) + 1) * 2;
    constexpr From least = static_cast<From>(Limits::min());
    const bool fits = from >= least && from < above;
    const To inside = static_cast<To>(fits ? from : From(0));
    const To outside = from >= above ? Limits::max() : from < least ? Limits::min() : To(0);
    return fits ? inside : outside;
  } else {
    return static_cast<To>(from);
  }
}

// Calls visitor(T{}) with a value of the C++ type that stores dtype, one of floating_dtypes. Throws
// std::logic_error for other dtypes.
template <class Visitor>
decltype(auto) visit(Dtype dtype, Visitor&& visitor) {
  if (dtype == Dtype::float32) return visitor(float{});
  if (dtype == Dtype::bfloat16) return visitor(Bfloat16{});
  if (dtype == Dtype::float16) return visitor(Half{});
  if (dtype == Dtype::float64) return visitor(double{});
  throw std::logic_error("dtype must be float, bfloat16, half or double, not " +
                         std::string(name(dtype)));
}

// Like visit, for every dtype.
template <class Visitor>
decltype(auto) visit_every(Dtype dtype, Visitor&& visitor) {
  if (dtype == Dtype::float8_e4m3) return visitor(Float8E4M3{});
  if (dtype == Dtype::float8_e5m2) return visitor(Float8E5M2{});
  if (dtype == Dtype::int8) return visitor(std::int8_t{});
  if (dtype == Dtype::uint8) return visitor(std::uint8_t{});
  if (dtype == Dtype::int32) return visitor(std::int32_t{});
  if (dtype == Dtype::uint32) return visitor(std::uint32_t{});
  if (dtype == Dtype::int64) return visitor(std::int64_t{});
  if (dtype == Dtype::uint64) return visitor(std::uint64_t{});
  return visit(dtype, visitor);
}

}  // namespace machine
