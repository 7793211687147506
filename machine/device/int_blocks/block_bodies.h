#pragma once
// The bodies of block_codes.h and their launches, for host and CUDA: a block of 64 elements is a
// row of the launch.

#include <cstdint>

#include "machine/device/int_blocks/block_codes.h"
#include "machine/device/kernels/fields.h"

namespace machine::kernel {

// Rows of codes: first the q of all blocks, then the scales.
struct CodeRows {
  std::int64_t blocks;  // of a row
  int bits;
  SHARDMARK_BOTH std::int64_t block_bytes() const { return code_block * bits / 8; }
  SHARDMARK_BOTH std::int64_t row_bytes() const { return blocks * (block_bytes() + 2); }
  SHARDMARK_BOTH std::int64_t scale_at(std::int64_t row, std::int64_t block) const {
    return row * row_bytes() + blocks * block_bytes() + 2 * block;
  }
  SHARDMARK_BOTH std::int64_t block_at(std::int64_t row, std::int64_t block) const {
    return row * row_bytes() + block * block_bytes();
  }
};

SHARDMARK_BOTH inline std::int32_t magnitude_bits(float value) {
  return static_cast<std::int32_t>(detail::bits_as<std::uint32_t>(value) & 0x7fffffffu);
}

inline constexpr std::int32_t infinite_magnitude = 0x7f800000;

SHARDMARK_BOTH inline bool is_finite(float value) {
  return magnitude_bits(value) < infinite_magnitude;
}

// Returns the scale of a block in the bits of bfloat16: 0 if all q are zero, NaN if a value is out
// of range. largest: the largest bits of a magnitude, in which NaN is above infinity.
SHARDMARK_BOTH inline std::uint16_t block_scale(std::int32_t largest, int levels) {
  constexpr std::int32_t least = (127 - 119) << 23, beyond = (127 + 127) << 23;
  if (largest < least) return 0;
  if (largest >= beyond) return 0x7fc0;
  const float exact =
      detail::bits_as<float>(static_cast<std::uint32_t>(largest)) / static_cast<float>(levels);
  return static_cast<std::uint16_t>((detail::bits_as<std::uint32_t>(exact) + 0xffffu) >> 16);
}

SHARDMARK_BOTH inline float scale_of(const std::uint8_t* at) {
  const std::uint32_t bits = std::uint32_t{at[0]} | std::uint32_t{at[1]} << 8;
  return detail::bits_as<float>(bits << 16);
}

// Rounds to nearest, ties to even, if |x| < 2^22.
SHARDMARK_BOTH inline int nearest(float x) {
  constexpr float shift = 0x1.8p23f;
  return static_cast<int>((x + shift) - shift);
}

template <class T, int bits>
struct EncodeBlock {
  const T* values;
  CodeRows rows;
  std::int64_t of_column, columns;  // rows of codes: transposed
  std::uint8_t* codes;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t index, const Lanes& lanes) const {
    const std::int64_t row = index / rows.blocks, block = index % rows.blocks;
    const std::int64_t to_row = row % columns * of_column + row / columns;
    const T* const from = values + index * code_block;
    std::uint8_t* const to = codes + rows.block_at(to_row, block);
    std::uint8_t* const scale_to = codes + rows.scale_at(to_row, block);
    const std::int32_t largest = lanes.template max<std::int32_t>(
        code_block, [=](std::int64_t i) { return magnitude_bits(widen(from[i])); });
    const std::uint16_t scale = block_scale(largest, code_levels(bits));
    if (lanes.leads()) {
      scale_to[0] = static_cast<std::uint8_t>(scale & 0xffu);
      scale_to[1] = static_cast<std::uint8_t>(scale >> 8);
    }
    const bool codes_values = scale != 0 && scale != 0x7fc0;
    const float by =
        codes_values ? 1.0f / detail::bits_as<float>(std::uint32_t{scale} << 16) : 0.0f;
    const auto code_of = [=](std::int64_t i) {
      return codes_values ? nearest(widen(from[i]) * by) : 0;
    };
    if constexpr (bits == 8) {
      lanes.each(code_block,
                 [=](std::int64_t i) { to[i] = static_cast<std::uint8_t>(code_of(i)); });
    } else {
      constexpr std::int64_t half = code_block / 2;
      lanes.each(half, [=](std::int64_t i) {
        const int low = code_of(i), high = code_of(i + half);
        to[i] = static_cast<std::uint8_t>((low & 0x0f) | (high & 0x0f) << 4);
      });
    }
  }
};

// Returns q of element i of a block.
template <int bits>
SHARDMARK_BOTH inline int code_at(const std::uint8_t* block, std::int64_t i) {
  if constexpr (bits == 8) return static_cast<std::int8_t>(block[i]);
  constexpr std::int64_t half = code_block / 2;
  const int nibble = i < half ? block[i] & 0x0f : block[i - half] >> 4;
  return (nibble ^ 0x08) - 0x08;  // the sign is the fourth bit
}

template <class T, int bits>
struct DecodeBlock {
  const std::uint8_t* codes;
  CodeRows rows;
  std::int64_t terms, term_bytes;
  T* values;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t index, const Lanes& lanes) const {
    const std::int64_t row = index / rows.blocks, block = index % rows.blocks;
    const std::uint8_t* const from = codes + rows.block_at(row, block);
    const std::uint8_t* const scales = codes + rows.scale_at(row, block);
    T* const to = values + index * code_block;
    if (terms == 1) {
      const float scale = scale_of(scales);
      lanes.each(code_block, [=](std::int64_t i) {
        to[i] = narrow<T>(static_cast<float>(code_at<bits>(from, i)) * scale);
      });
      return;
    }
    const std::int64_t count = terms, stride = term_bytes;
    lanes.each(code_block, [=](std::int64_t i) {
      float sum = 0;
      for (std::int64_t term = 0; term < count; ++term) {
        const float value = static_cast<float>(code_at<bits>(from + term * stride, i)) *
                            scale_of(scales + term * stride);
        sum = term == 0 ? value : sum + value;
      }
      to[i] = narrow<T>(sum);
    });
  }
};

// Calls visitor(T{}) with the type of values that have codes.
template <class Visitor>
void visit_coded(Dtype dtype, const Visitor& visitor) {
  if (dtype == Dtype::float32) return visitor(float{});
  if (dtype == Dtype::bfloat16) return visitor(Bfloat16{});
  visitor(Half{});
}

// The functions of block_codes.h, whose arguments are checked.
template <class Launch>
struct BlockCodes {
  static void encode(const Launch& launch, const Tensor& values, std::int64_t rows, int bits,
                     const Tensor& codes, std::int64_t columns) {
    const CodeRows of{values.size() / rows / code_block, bits};
    visit_coded(values.dtype(), [&]<class T>(T) {
      const auto run = [&](const auto& body) { launch.rows(rows * of.blocks, code_block, body); };
      auto* const to = codes.as<std::uint8_t>();
      if (bits == 8)
        run(EncodeBlock<T, 8>{values.as<T>(), of, rows / columns, columns, to});
      else
        run(EncodeBlock<T, 4>{values.as<T>(), of, rows / columns, columns, to});
    });
  }
  static void decode(const Launch& launch, const Tensor& codes, std::int64_t terms, int bits,
                     const Tensor& values, std::int64_t rows) {
    const CodeRows of{values.size() / rows / code_block, bits};
    visit_coded(values.dtype(), [&]<class T>(T) {
      const auto run = [&](const auto& body) {
        launch.rows(rows * of.blocks, code_block * terms, body);
      };
      const auto* const from = codes.as<std::uint8_t>();
      const std::int64_t stride = rows * of.row_bytes();
      if (bits == 8)
        run(DecodeBlock<T, 8>{from, of, terms, stride, values.as<T>()});
      else
        run(DecodeBlock<T, 4>{from, of, terms, stride, values.as<T>()});
    });
  }
};

}  // namespace machine::kernel
