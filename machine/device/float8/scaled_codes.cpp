#include "machine/device/float8/scaled_codes.h"

#include <stdexcept>
#include <string>

#include "machine/base/error.h"
#include "machine/device/float8/scaled_bodies.h"
#include "machine/device/float8/scaled_codes_cuda.h"
#include "machine/device/host/launch.h"
#include "machine/device/kernels/checks.h"

namespace machine {
namespace {

using Host = kernel::ScaledCodes<HostLaunch>;

bool on_host(Stream& stream) { return stream.device().kind() == Device::Kind::host; }

void check_codes(Dtype dtype) {
  if (dtype != Dtype::float8_e4m3 && dtype != Dtype::float8_e5m2)
    throw std::logic_error("codes must be f8e4m3 or f8e5m2, not " + std::string(name(dtype)));
}

void check_values(const Tensor& x) {
  if (x.dtype() != Dtype::float32 && x.dtype() != Dtype::bfloat16 && x.dtype() != Dtype::float16)
    throw std::logic_error("values with 8-bit codes must be float, bfloat16 or half, not " +
                           std::string(name(x.dtype())));
}

void check_scales(const Tensor& scale) {
  if (scale.dtype() != Dtype::float32 && scale.dtype() != Dtype::uint8)
    throw std::logic_error("scales must be float or uint8 (E8M0), not " +
                           std::string(name(scale.dtype())));
}

void check_blocks(const Stream& stream, const Tensor& matrix, Blocks blocks, const Tensor& scale) {
  SHARDMARK_CHECK(blocks.rows, >=, 1);
  SHARDMARK_CHECK(blocks.cols, >=, 1);
  kernel::check_kind(stream.device().kind(), {&matrix, &scale});
  kernel::check_equal("scales of blocks", scale.size(),
                      blocks.down(matrix) * blocks.across(matrix));
}

kernel::Float8Range range_of(Dtype float8) {
  return {largest_of(float8), largest_exponent_of(float8)};
}

}  // namespace

float largest_of(Dtype float8) {
  check_codes(float8);
  return float8 == Dtype::float8_e4m3 ? 448.0f : 57344.0f;
}

int largest_exponent_of(Dtype float8) {
  check_codes(float8);
  return float8 == Dtype::float8_e4m3 ? 8 : 15;
}

void largest_magnitudes(Stream& stream, const Tensor& x, Blocks blocks, const Tensor& amax) {
  check_blocks(stream, x, blocks, amax);
  check_values(x);
  kernel::check_dtypes(Dtype::float32, {&amax});
  if (!on_host(stream)) return cuda::largest_magnitudes(stream, x, blocks, amax);
  Host::magnitudes(HostLaunch(stream.device()), x, blocks, amax);
}

void choose_scales(Stream& stream, const Tensor& amax, Dtype float8, const ScaleRule& rule,
                   const Tensor& scale, const Tensor& inverse) {
  kernel::check_kind(stream.device().kind(), {&amax, &scale, &inverse});
  kernel::check_dtypes(Dtype::float32, {&amax, &scale, &inverse});
  kernel::check_sizes(amax.size(), {&scale, &inverse});
  if (!on_host(stream)) return cuda::choose_scales(stream, amax, float8, rule, scale, inverse);
  Host::scales(HostLaunch(stream.device()), amax, range_of(float8), rule, scale, inverse);
}

void choose_exponents(Stream& stream, const Tensor& amax, Dtype float8, const Tensor& exponent) {
  kernel::check_kind(stream.device().kind(), {&amax, &exponent});
  kernel::check_dtypes(Dtype::float32, {&amax});
  kernel::check_dtypes(Dtype::uint8, {&exponent});
  kernel::check_sizes(amax.size(), {&exponent});
  if (!on_host(stream)) return cuda::choose_exponents(stream, amax, float8, exponent);
  Host::exponents(HostLaunch(stream.device()), amax, range_of(float8), exponent);
}

void encode(Stream& stream, const Tensor& x, Blocks blocks, const Tensor& scale,
            const Tensor& codes) {
  check_blocks(stream, x, blocks, scale);
  check_values(x);
  check_scales(scale);
  check_codes(codes.dtype());
  kernel::check_kind(stream.device().kind(), {&codes});
  kernel::check_sizes(x.size(), {&codes});
  if (!on_host(stream)) return cuda::encode(stream, x, blocks, scale, codes);
  Host::encode(HostLaunch(stream.device()), x, blocks, scale, codes);
}

void decode(Stream& stream, const Tensor& codes, Blocks blocks, const Tensor& inverse,
            const Tensor& values) {
  check_blocks(stream, codes, blocks, inverse);
  check_codes(codes.dtype());
  check_scales(inverse);
  kernel::check_kind(stream.device().kind(), {&values});
  kernel::check_dtypes(Dtype::float32, {&values});
  kernel::check_sizes(codes.size(), {&values});
  if (!on_host(stream)) return cuda::decode(stream, codes, blocks, inverse, values);
  Host::decode(HostLaunch(stream.device()), codes, blocks, inverse, values);
}

}  // namespace machine
