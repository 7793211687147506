#pragma once
// Values in 8 or 4 bits with one scale for each block of 64 elements: value ~ q * scale.
//
//   const Tensor codes(device, Dtype::uint8, {rows * code_bytes(bits, n)}, Category::buffers);
//   encode_blocks(stream, values, rows, bits, codes);       // values [rows, n]
//   decode_blocks(stream, codes, 1, bits, again, rows);     // [rows, n]
//
// Symmetric and linear: scale = the largest magnitude over levels (127 or 7), rounded up to
// bfloat16, and q = value * (1 / scale), rounded to nearest, ties to even. A product q * scale has
// at most 15 bits, so decoding does not round in float. |value - q * scale| <= scale (1/2 + levels
// * 4 u), u = 2^-24: half a step, and the roundings of the reciprocal and of the product. So each
// largest element of a block has the code +-levels.
//
// A row's code is its q, block by block, then its scales: n + n / 32 or n / 2 + n / 32 bytes. With
// 4 bits byte i of a block has element i in its low bits and element i + 32 in its high bits.
//
// A block whose largest magnitude is below 2^-119 is encoded as zeros. A block with NaN, infinity,
// or 2^127 and above decodes as NaN. Values are float, bfloat16 or half; n is a multiple of 64. One
// source for host and CUDA. Throws std::logic_error for shapes or dtypes that do not match.
//
// Source: blocks of gradients and of weights in ZeRO++ (Wang et al. 2023, arXiv:2306.10209); linear
// quantization with a scale per block (Dettmers et al. 2021, arXiv:2110.02861).

#include <cstdint>

#include "machine/device/tensor.h"

namespace machine {

inline constexpr std::int64_t code_block = 64;  // elements

constexpr int code_levels(int bits) { return (1 << (bits - 1)) - 1; }
// Returns the bytes of a row of n elements.
constexpr std::int64_t code_bytes(int bits, std::int64_t n) {
  return n * bits / 8 + n / code_block * 2;
}

// The rows of codes are those of a transposed matrix: row i of values becomes row i % columns *
// (rows / columns) + i / columns of codes. columns divides rows; 1: the same order.
void encode_blocks(Stream& stream, const Tensor& values, std::int64_t rows, int bits,
                   const Tensor& codes, std::int64_t columns = 1);

// values = the sum over `terms` codes, which follow each other, in this order and in float, rounded
// once to the values' dtype. codes: [terms, rows], in rows of code_bytes.
void decode_blocks(Stream& stream, const Tensor& codes, std::int64_t terms, int bits,
                   const Tensor& values, std::int64_t rows);

}  // namespace machine
