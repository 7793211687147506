#include "machine/device/float8/scaled_gemm.h"

#include <fmt/format.h>

#include <stdexcept>

#include "machine/base/error.h"
#include "machine/device/faults.h"
#include "machine/device/float8/scaled_gemm_cuda.h"
#include "machine/device/gemm.h"
#include "machine/device/kernels/checks.h"

namespace machine {
namespace {

bool has(const ScaledProduct& product, Scaling scaling) {
  return product.a == scaling || product.b == scaling;
}

std::string capability_text(int capability) {
  return fmt::format("{}.{}", capability / 10, capability % 10);
}

std::int64_t divided(std::int64_t extent, std::int64_t block) {
  return (extent + block - 1) / block;
}

// outer: the extent of c.
void check_operand(const ScaledMatrix& x, std::int64_t outer, std::int64_t inner) {
  if (x.codes.dtype() != Dtype::float8_e4m3 && x.codes.dtype() != Dtype::float8_e5m2)
    throw std::logic_error(
        fmt::format("scaled_gemm: codes must be f8e4m3 or f8e5m2 (got {})", name(x.codes.dtype())));
  SHARDMARK_CHECK(x.codes.size(), ==, outer * inner);
  kernel::check_dtypes(x.scaling == Scaling::vector_32 ? Dtype::uint8 : Dtype::float32,
                       {&x.inverse});
  std::int64_t scales = 1;
  if (x.scaling == Scaling::vector_128) scales = outer * divided(inner, 128);
  if (x.scaling == Scaling::square_128) scales = divided(outer, 128) * divided(inner, 128);
  if (x.scaling == Scaling::vector_32) scales = outer * divided(inner, 32);
  SHARDMARK_CHECK(x.inverse.size(), ==, scales);
}

}  // namespace

std::string why_not_scaled_gemm(int compute_capability, const ScaledProduct& product) {
  const auto requires_capability = [&](int least, std::string_view what, std::string_view rule) {
    return fmt::format("{} require compute capability {}{} (got {})", what, capability_text(least),
                       rule, capability_text(compute_capability));
  };
  if (compute_capability == 0) return "products of 8-bit codes require a GPU (got the host)";
  if (compute_capability < 89)
    return requires_capability(89, "products of 8-bit codes", " or more");
  const bool of_128 = has(product, Scaling::vector_128) || has(product, Scaling::square_128);
  if (of_128 && compute_capability != 90)
    return requires_capability(90, "scales of 128 elements", "");
  if (has(product, Scaling::vector_32) && compute_capability < 100)
    return requires_capability(100, "scales of 32 elements", " or more");
  if (product.rows % 16 != 0 || product.cols % 16 != 0 || product.inner % 16 != 0)
    return fmt::format("products of 8-bit codes require extents that 16 divides (got {} x {} x {})",
                       product.rows, product.inner, product.cols);
  if (product.rows * product.cols * product.inner == 0)
    return "products of 8-bit codes require elements";
  return "";
}

void scaled_gemm(Stream& stream, const ScaledMatrix& a, const ScaledMatrix& b, const Tensor& c,
                 bool adds) {
  const ScaledProduct product{c.rows(), c.cols(), a.transposed ? a.codes.rows() : a.codes.cols(),
                              a.scaling, b.scaling};
  check_operand(a, product.rows, product.inner);
  check_operand(b, product.cols, product.inner);
  SHARDMARK_CHECK(b.transposed ? b.codes.rows() : b.codes.cols(), ==, product.cols);
  if (c.dtype() != Dtype::float32 && c.dtype() != Dtype::bfloat16 && c.dtype() != Dtype::float16)
    throw std::logic_error(fmt::format(
        "scaled_gemm: the result must be float, bfloat16 or half (got {})", name(c.dtype())));
  if (a.codes.dtype() == Dtype::float8_e5m2 && b.codes.dtype() == Dtype::float8_e5m2)
    throw std::logic_error("scaled_gemm: at most one operand may be f8e5m2");
  kernel::check_kind(stream.device().kind(), {&a.codes, &a.inverse, &b.codes, &b.inverse, &c});
  const std::string why = why_not_scaled_gemm(stream.device().compute_capability(), product);
  if (!why.empty()) throw std::logic_error("scaled_gemm: " + why);
  cuda::scaled_gemm(stream, product, a, b, c, adds);
  const Faults* faults = stream.device().faults();
  if (faults && faults->after_gemm) faults->after_gemm(stream, matrix(c));
}

double scaled_gemm_roundoff() { return cuda::is_virtual() ? 0x1p-24 : 0x1p-13; }

}  // namespace machine
