#include "machine/device/float8/scaled_codes_cuda.h"

#include "machine/device/cuda/launch.cuh"
#include "machine/device/float8/scaled_bodies.h"

namespace machine::cuda {
namespace {

using Codes = kernel::ScaledCodes<CudaLaunch>;

kernel::Float8Range range_of(Dtype float8) {
  return {largest_of(float8), largest_exponent_of(float8)};
}

}  // namespace

void largest_magnitudes(Stream& stream, const Tensor& x, Blocks blocks, const Tensor& amax) {
  Codes::magnitudes(CudaLaunch(stream), x, blocks, amax);
}

void choose_scales(Stream& stream, const Tensor& amax, Dtype float8, const ScaleRule& rule,
                   const Tensor& scale, const Tensor& inverse) {
  Codes::scales(CudaLaunch(stream), amax, range_of(float8), rule, scale, inverse);
}

void choose_exponents(Stream& stream, const Tensor& amax, Dtype float8, const Tensor& exponent) {
  Codes::exponents(CudaLaunch(stream), amax, range_of(float8), exponent);
}

void encode(Stream& stream, const Tensor& x, Blocks blocks, const Tensor& scale,
            const Tensor& codes) {
  Codes::encode(CudaLaunch(stream), x, blocks, scale, codes);
}

void decode(Stream& stream, const Tensor& codes, Blocks blocks, const Tensor& inverse,
            const Tensor& values) {
  Codes::decode(CudaLaunch(stream), codes, blocks, inverse, values);
}

}  // namespace machine::cuda
