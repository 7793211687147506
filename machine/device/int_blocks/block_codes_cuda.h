#pragma once
// The functions of device/int_blocks/block_codes.h on a CUDA stream. Their caller checks the
// arguments.

#include "machine/device/int_blocks/block_codes.h"

namespace machine::cuda {

void encode_blocks(Stream& stream, const Tensor& values, std::int64_t rows, int bits,
                   const Tensor& codes, std::int64_t columns);
void decode_blocks(Stream& stream, const Tensor& codes, std::int64_t terms, int bits,
                   const Tensor& values, std::int64_t rows);

}  // namespace machine::cuda
