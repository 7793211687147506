#pragma once
// Codes of float values with fewer bytes, for sending. Their length depends only on the count.
//
//   int8_block, int4_block  q in 8 or 4 bits and one float, the scale, for each block of 256
//   one_bit                 a sign for each value, and one scale, |values| / sqrt(count), for all
//   half, bfloat16          2 bytes per value, rounded once to nearest, ties to even
//
// Blocks: value ~ q * scale, with scale = largest magnitude / levels (127 or 7), and q rounded to
// nearest, ties to even. Gradients in 8 bits: Dettmers 2015, arXiv:1511.04561 (its linear
// quantization). A scale per block: Dettmers et al. 2021, arXiv:2110.02861. 4 bits: ZeRO++, Wang et
// al. 2023, arXiv:2306.10209. A block's code is its scale, then its q: with 8 bits n + 4 ceil(n /
// 256) bytes. With 4 bits a byte holds two, the second half of a block in the high bits, and an odd
// block ends with half a byte. |value - q * scale| <= scale (1/2 + levels * 4 u), u = 2^-24: half a
// step, and the roundings of the scale, its reciprocal, the quotient and the product. A block whose
// largest magnitude is below 2^-119 would have a subnormal scale; its code is zeros. A block with
// NaN, infinity, or 2^127 and above (levels * scale could overflow) decodes as NaN.
//
// One bit: 1-bit Adam, Tang et al. 2021, arXiv:2102.02888, section 3: the code has the 2-norm of
// its values. A sign of 1 bit without a scale per element: Seide et al., Interspeech 2014. n values
// are 4 + ceil(n / 8) bytes, and none if n is 0: the scale, then value 8 j + b in bit b of byte j,
// set if it is negative. |value - decoded| = ||value| - scale| <= max(|value|, scale), and three
// roundings: of the scale, and of the difference. Zero decodes as +scale. If a value is not finite,
// all values decode as NaN.
//
// Half and bfloat16: as fp16_compress_hook and bf16_compress_hook of PyTorch's
// DistributedDataParallel. |value - decoded| <= u |value|, u = 2^-11 or 2^-8; below the normal
// numbers, half the smallest subnormal number (2^-25 or 2^-134). Half turns 65520 and above into
// infinity. NaN and infinity decode at their place.
//
// One source for host and CUDA. Codes may be at any address, those of half and bfloat16 at an even
// one. Throws std::logic_error for sizes or dtypes that do not match.

#include <cstdint>

#include "machine/device/tensor.h"

namespace machine {

enum class FloatCode : unsigned char { int8_block, int4_block, one_bit, half, bfloat16 };

std::int64_t coded_bytes(FloatCode code, std::int64_t count);

// Encodes values and replaces each by value - decoded, or by zero if that is not finite. codes:
// uint8 [coded_bytes]. squares: memory for one double, of one_bit.
void encode_floats(Stream& stream, FloatCode code, const Tensor& values, const Tensor& codes,
                   const Tensor& squares);

// out[i] = the sum over `terms` codes, `stride` bytes apart, in this order and in float.
void decode_floats(Stream& stream, FloatCode code, const Tensor& codes, std::int64_t terms,
                   std::int64_t stride, const Tensor& out);

}  // namespace machine
