#pragma once
// The functions of device/float8/scaled_codes.h on a CUDA stream. Their caller checks the
// arguments.

#include "machine/device/float8/scaled_codes.h"

namespace machine::cuda {

void largest_magnitudes(Stream& stream, const Tensor& x, Blocks blocks, const Tensor& amax);
void choose_scales(Stream& stream, const Tensor& amax, Dtype float8, const ScaleRule& rule,
                   const Tensor& scale, const Tensor& inverse);
void choose_exponents(Stream& stream, const Tensor& amax, Dtype float8, const Tensor& exponent);
void encode(Stream& stream, const Tensor& x, Blocks blocks, const Tensor& scale,
            const Tensor& codes);
void decode(Stream& stream, const Tensor& codes, Blocks blocks, const Tensor& inverse,
            const Tensor& values);

}  // namespace machine::cuda
