#include "machine/device/float_codes/float_codes.h"

#include "machine/base/error.h"
#include "machine/device/float_codes/code_bodies.h"
#include "machine/device/float_codes/float_codes_cuda.h"
#include "machine/device/host/launch.h"
#include "machine/device/kernels/checks.h"

namespace machine {
namespace {

using Host = kernel::FloatCodes<HostLaunch>;

void check(const Stream& stream, const Tensor& values, const Tensor& codes) {
  kernel::check_kind(stream.device().kind(), {&values, &codes});
  kernel::check_dtypes(Dtype::float32, {&values});
  kernel::check_dtypes(Dtype::uint8, {&codes});
}

}  // namespace

std::int64_t coded_bytes(FloatCode code, std::int64_t count) {
  const std::int64_t blocks = (count + kernel::float_block - 1) / kernel::float_block;
  switch (code) {
    case FloatCode::int8_block:
      return 4 * blocks + count;
    case FloatCode::int4_block:
      return 4 * blocks + (count + 1) / 2;  // whole blocks are even
    case FloatCode::one_bit:
      return count == 0 ? 0 : 4 + (count + 7) / 8;
    case FloatCode::half:
    case FloatCode::bfloat16:
      return 2 * count;
  }
  return 0;
}

void encode_floats(Stream& stream, FloatCode code, const Tensor& values, const Tensor& codes,
                   const Tensor& squares) {
  check(stream, values, codes);
  kernel::check_sizes(coded_bytes(code, values.size()), {&codes});
  if (values.size() == 0) return;
  if (code == FloatCode::one_bit) stream.kernels().sum_of_squares(values, squares);
  if (stream.device().kind() != Device::Kind::host)
    return cuda::encode_floats(stream, code, values, codes, squares);
  Host::encode(HostLaunch(stream.device()), code, values, codes, squares);
}

void decode_floats(Stream& stream, FloatCode code, const Tensor& codes, std::int64_t terms,
                   std::int64_t stride, const Tensor& out) {
  check(stream, out, codes);
  SHARDMARK_CHECK(terms, >=, 1);
  SHARDMARK_CHECK(codes.size(), >=, (terms - 1) * stride + coded_bytes(code, out.size()));
  if (out.size() == 0) return;
  if (stream.device().kind() != Device::Kind::host)
    return cuda::decode_floats(stream, code, codes, terms, stride, out);
  Host::decode(HostLaunch(stream.device()), code, codes, terms, stride, out);
}

}  // namespace machine
