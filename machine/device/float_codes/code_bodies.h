#pragma once
// The bodies of float_codes.h and their launches, for host and CUDA: a row of the launch is a block
// of 256 values.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "machine/device/float_codes/float_codes.h"
#include "machine/device/int_blocks/block_bodies.h"
#include "machine/device/kernels/fields.h"

namespace machine::kernel {

inline constexpr std::int64_t float_block = 256;

SHARDMARK_BOTH inline std::int64_t size_of_block(std::int64_t count, std::int64_t block) {
  const std::int64_t left = count - block * float_block;
  return left < float_block ? left : float_block;
}

// A code may begin at any address.
SHARDMARK_BOTH inline void store_float(float value, std::uint8_t* to) {
  const auto bits = detail::bits_as<std::uint32_t>(value);
  for (int i = 0; i < 4; ++i) to[i] = static_cast<std::uint8_t>(bits >> (8 * i) & 0xffu);
}
SHARDMARK_BOTH inline float load_float(const std::uint8_t* from) {
  std::uint32_t bits = 0;
  for (int i = 0; i < 4; ++i) bits |= std::uint32_t{from[i]} << (8 * i);
  return detail::bits_as<float>(bits);
}

// To nearest, ties to even, of a number below 2^22.
struct Rounded {
  float q;
  std::uint32_t bits;  // end with those of the integer q
};
SHARDMARK_BOTH inline Rounded rounded(float x) {
  constexpr float shift = 0x1.8p23f;
  const float shifted = x + shift;
  return {shifted - shift, detail::bits_as<std::uint32_t>(shifted)};
}

inline constexpr std::uint32_t bits_of_nan = 0x7fc00000u;

// What a decoding body reads and writes: decode_floats' arguments.
struct CodedTerms {
  const std::uint8_t* codes;
  std::int64_t terms, stride, count;
  float* out;
};

template <int bits>
struct IntBlock {
  static constexpr int levels = code_levels(bits);
  static constexpr std::int64_t bytes = 4 + float_block * bits / 8;
  static constexpr std::int32_t least = (127 - 119) << 23, beyond = (127 + 127) << 23;

  struct Encode {
    float* values;
    std::int64_t count;
    std::uint8_t* codes;

    template <class Lanes>
    SHARDMARK_BOTH void operator()(std::int64_t block, const Lanes& lanes) const {
      float* const from = values + block * float_block;
      std::uint8_t* const to = codes + block * bytes;
      std::uint8_t* const body = to + 4;
      const std::int64_t size = size_of_block(count, block);
      const std::int32_t largest = lanes.template max<std::int32_t>(
          size, [=](std::int64_t i) { return magnitude_bits(from[i]); });
      if (largest < least || largest >= beyond) {
        const bool keeps = largest < least;
        if (lanes.leads()) store_float(keeps ? 0 : detail::bits_as<float>(bits_of_nan), to);
        lanes.each((size * bits + 7) / 8, [=](std::int64_t i) { body[i] = 0; });
        if (!keeps) lanes.each(size, [=](std::int64_t i) { from[i] = 0; });
        return;
      }
      const float scale = detail::bits_as<float>(static_cast<std::uint32_t>(largest)) / levels;
      const float by = 1 / scale;
      if (lanes.leads()) store_float(scale, to);
      if constexpr (bits == 8) {
        lanes.each(size, [=](std::int64_t i) {
          const Rounded r = rounded(from[i] * by);
          body[i] = static_cast<std::uint8_t>(r.bits);
          from[i] -= r.q * scale;
        });
      } else {
        const std::int64_t half = (size + 1) / 2, pairs = size / 2;
        float* const second = from + half;
        lanes.each(pairs, [=](std::int64_t i) {
          const Rounded low = rounded(from[i] * by), high = rounded(second[i] * by);
          body[i] = static_cast<std::uint8_t>((low.bits & 0x0fu) | (high.bits & 0x0fu) << 4);
          from[i] -= low.q * scale;
          second[i] -= high.q * scale;
        });
        if (pairs < half && lanes.leads()) {
          const Rounded last = rounded(from[pairs] * by);
          body[pairs] = static_cast<std::uint8_t>(last.bits & 0x0fu);
          from[pairs] -= last.q * scale;
        }
      }
    }
  };

  struct Decode : CodedTerms {
    template <class Lanes>
    SHARDMARK_BOTH void operator()(std::int64_t block, const Lanes& lanes) const {
      const std::int64_t size = size_of_block(count, block), half = (size + 1) / 2;
      float* const to = out + block * float_block;
      for (std::int64_t term = 0; term < terms; ++term) {
        const std::uint8_t* const from = codes + term * stride + block * bytes;
        const std::uint8_t* const body = from + 4;
        const float scale = load_float(from);
        const auto put = [=](std::int64_t n, float* at, auto q_of) {
          if (term == 0)
            lanes.each(n, [=](std::int64_t i) { at[i] = static_cast<float>(q_of(i)) * scale; });
          else
            lanes.each(n, [=](std::int64_t i) { at[i] += static_cast<float>(q_of(i)) * scale; });
        };
        if constexpr (bits == 8) {
          put(size, to, [=](std::int64_t i) { return static_cast<std::int8_t>(body[i]); });
        } else {  // the sign is the fourth bit
          put(half, to, [=](std::int64_t i) { return ((body[i] & 0x0f) ^ 0x08) - 0x08; });
          put(size - half, to + half,
              [=](std::int64_t i) { return ((body[i] >> 4) ^ 0x08) - 0x08; });
        }
      }
    }
  };
};

struct EncodeSigns {
  float* values;
  std::int64_t count;
  const double* squares;
  std::uint8_t* codes;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t block, const Lanes& lanes) const {
    const auto root = static_cast<float>(std::sqrt(*squares / static_cast<double>(count)));
    const bool finite = is_finite(root);
    const float scale = finite ? root : detail::bits_as<float>(bits_of_nan);
    if (block == 0 && lanes.leads()) store_float(scale, codes);
    float* const from = values + block * float_block;
    std::uint8_t* const to = codes + 4 + block * (float_block / 8);
    const std::int64_t size = size_of_block(count, block);
    lanes.each((size + 7) / 8, [=](std::int64_t j) {
      unsigned byte = 0;
      for (int b = 0; b < 8 && 8 * j + b < size; ++b) {
        float* const value = from + 8 * j + b;
        const bool negative = *value < 0;
        byte |= static_cast<unsigned>(negative) << b;
        *value = finite ? *value - (negative ? -scale : scale) : 0.0f;
      }
      to[j] = static_cast<std::uint8_t>(byte);
    });
  }
};

struct DecodeSigns : CodedTerms {
  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t block, const Lanes& lanes) const {
    const std::int64_t size = size_of_block(count, block);
    float* const to = out + block * float_block;
    for (std::int64_t term = 0; term < terms; ++term) {
      const std::uint8_t* const from = codes + term * stride;
      const std::uint8_t* const signs = from + 4 + block * (float_block / 8);
      const float scale = load_float(from);
      const auto positive = detail::bits_as<std::uint32_t>(scale);
      const auto value = [=](unsigned byte, int bit) {
        return detail::bits_as<float>(positive ^ (byte >> bit & 1u) << 31);
      };
      const auto put = [=](std::int64_t begin, int n) {
        const unsigned byte = signs[begin / 8];
        if (term == 0)
          for (int bit = 0; bit < n; ++bit) to[begin + bit] = value(byte, bit);
        else
          for (int bit = 0; bit < n; ++bit) to[begin + bit] += value(byte, bit);
      };
      lanes.each(size / 8, [=](std::int64_t j) { put(8 * j, 8); });
      if (size % 8 != 0 && lanes.leads()) put(size / 8 * 8, static_cast<int>(size % 8));
    }
  }
};

template <class T>
struct EncodeNarrow {
  float* values;
  std::int64_t count;
  T* codes;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t block, const Lanes& lanes) const {
    float* const from = values + block * float_block;
    T* const to = codes + block * float_block;
    const std::int64_t size = size_of_block(count, block);
    lanes.each(size, [=](std::int64_t i) { to[i] = narrow<T>(from[i]); });
    lanes.each(size, [=](std::int64_t i) {
      const float carried = widen(to[i]), rest = from[i] - carried;
      from[i] = is_finite(carried) ? rest : 0.0f;
    });
  }
};

template <class T>
struct DecodeNarrow : CodedTerms {
  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t block, const Lanes& lanes) const {
    const std::int64_t size = size_of_block(count, block);
    float* const to = out + block * float_block;
    const T* from = reinterpret_cast<const T*>(codes) + block * float_block;
    lanes.each(size, [=](std::int64_t i) { to[i] = widen(from[i]); });
    for (std::int64_t term = 1; term < terms; ++term) {
      from = reinterpret_cast<const T*>(reinterpret_cast<const std::uint8_t*>(from) + stride);
      lanes.each(size, [=](std::int64_t i) { to[i] += widen(from[i]); });
    }
  }
};

// The functions of float_codes.h, whose arguments are checked.
template <class Launch>
struct FloatCodes {
  static void encode(const Launch& launch, FloatCode code, const Tensor& values,
                     const Tensor& codes, const Tensor& squares) {
    const std::int64_t count = values.size();
    auto* const from = values.as<float>();
    auto* const to = codes.as<std::uint8_t>();
    const auto run = [&](const auto& body) { launch.rows(blocks(count), float_block, body); };
    switch (code) {
      case FloatCode::int8_block:
        return run(typename IntBlock<8>::Encode{from, count, to});
      case FloatCode::int4_block:
        return run(typename IntBlock<4>::Encode{from, count, to});
      case FloatCode::one_bit:
        return run(EncodeSigns{from, count, squares.as<double>(), to});
      case FloatCode::half:
        return run(EncodeNarrow<Half>{from, count, reinterpret_cast<Half*>(to)});
      case FloatCode::bfloat16:
        return run(EncodeNarrow<Bfloat16>{from, count, reinterpret_cast<Bfloat16*>(to)});
    }
  }
  static void decode(const Launch& launch, FloatCode code, const Tensor& codes, std::int64_t terms,
                     std::int64_t stride, const Tensor& out) {
    const std::int64_t count = out.size();
    const CodedTerms coded{codes.as<std::uint8_t>(), terms, stride, count, out.as<float>()};
    const auto run = [&](const auto& body) { launch.rows(blocks(count), float_block, body); };
    switch (code) {
      case FloatCode::int8_block:
        return run(typename IntBlock<8>::Decode{coded});
      case FloatCode::int4_block:
        return run(typename IntBlock<4>::Decode{coded});
      case FloatCode::one_bit:
        return run(DecodeSigns{coded});
      case FloatCode::half:
        return run(DecodeNarrow<Half>{coded});
      case FloatCode::bfloat16:
        return run(DecodeNarrow<Bfloat16>{coded});
    }
  }

 private:
  static std::int64_t blocks(std::int64_t count) { return (count + float_block - 1) / float_block; }
};

}  // namespace machine::kernel
