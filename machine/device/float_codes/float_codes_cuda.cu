#include "machine/device/float_codes/float_codes_cuda.h"

#include "machine/device/cuda/launch.cuh"
#include "machine/device/float_codes/code_bodies.h"

namespace machine::cuda {
namespace {

using Codes = kernel::FloatCodes<CudaLaunch>;

}  // namespace

void encode_floats(Stream& stream, FloatCode code, const Tensor& values, const Tensor& codes,
                   const Tensor& squares) {
  Codes::encode(CudaLaunch(stream), code, values, codes, squares);
}

void decode_floats(Stream& stream, FloatCode code, const Tensor& codes, std::int64_t terms,
                   std::int64_t stride, const Tensor& out) {
  Codes::decode(CudaLaunch(stream), code, codes, terms, stride, out);
}

}  // namespace machine::cuda
