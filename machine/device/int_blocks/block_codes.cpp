#include "machine/device/int_blocks/block_codes.h"

#include <stdexcept>
#include <string>

#include "machine/base/error.h"
#include "machine/device/host/launch.h"
#include "machine/device/int_blocks/block_bodies.h"
#include "machine/device/int_blocks/block_codes_cuda.h"
#include "machine/device/kernels/checks.h"

namespace machine {
namespace {

using Host = kernel::BlockCodes<HostLaunch>;

void check(const Stream& stream, const Tensor& values, std::int64_t rows, int bits,
           const Tensor& codes, std::int64_t terms) {
  kernel::check_kind(stream.device().kind(), {&values, &codes});
  kernel::check_dtypes(Dtype::uint8, {&codes});
  if (values.dtype() != Dtype::float32 && values.dtype() != Dtype::bfloat16 &&
      values.dtype() != Dtype::float16)
    throw std::logic_error("values of blocks must be float, bfloat16 or half, not " +
                           std::string(name(values.dtype())));
  if (bits != 8 && bits != 4)
    throw std::logic_error("blocks have 8 or 4 bits, not " + std::to_string(bits));
  SHARDMARK_CHECK(rows, >=, 1);
  SHARDMARK_CHECK(terms, >=, 1);
  kernel::check_equal("elements beyond rows of whole blocks", values.size() % (rows * code_block),
                      0);
  kernel::check_sizes(terms * rows * code_bytes(bits, values.size() / rows), {&codes});
}

}  // namespace

void encode_blocks(Stream& stream, const Tensor& values, std::int64_t rows, int bits,
                   const Tensor& codes, std::int64_t columns) {
  check(stream, values, rows, bits, codes, 1);
  kernel::check_equal("rows beyond whole columns", rows % columns, 0);
  if (stream.device().kind() != Device::Kind::host)
    return cuda::encode_blocks(stream, values, rows, bits, codes, columns);
  Host::encode(HostLaunch(stream.device()), values, rows, bits, codes, columns);
}

void decode_blocks(Stream& stream, const Tensor& codes, std::int64_t terms, int bits,
                   const Tensor& values, std::int64_t rows) {
  check(stream, values, rows, bits, codes, terms);
  if (stream.device().kind() != Device::Kind::host)
    return cuda::decode_blocks(stream, codes, terms, bits, values, rows);
  Host::decode(HostLaunch(stream.device()), codes, terms, bits, values, rows);
}

}  // namespace machine
