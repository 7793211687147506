#include "machine/device/int_blocks/block_codes_cuda.h"

#include "machine/device/cuda/launch.cuh"
#include "machine/device/int_blocks/block_bodies.h"

namespace machine::cuda {
namespace {

using Codes = kernel::BlockCodes<CudaLaunch>;

}  // namespace

void encode_blocks(Stream& stream, const Tensor& values, std::int64_t rows, int bits,
                   const Tensor& codes, std::int64_t columns) {
  Codes::encode(CudaLaunch(stream), values, rows, bits, codes, columns);
}

void decode_blocks(Stream& stream, const Tensor& codes, std::int64_t terms, int bits,
                   const Tensor& values, std::int64_t rows) {
  Codes::decode(CudaLaunch(stream), codes, terms, bits, values, rows);
}

}  // namespace machine::cuda
