#pragma once
// The functions of device/float_codes/float_codes.h on a CUDA stream. Their caller checks the
// arguments.

#include "machine/device/float_codes/float_codes.h"

namespace machine::cuda {

void encode_floats(Stream& stream, FloatCode code, const Tensor& values, const Tensor& codes,
                   const Tensor& squares);
void decode_floats(Stream& stream, FloatCode code, const Tensor& codes, std::int64_t terms,
                   std::int64_t stride, const Tensor& out);

}  // namespace machine::cuda
