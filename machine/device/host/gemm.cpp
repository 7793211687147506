// The host's GEMM: chooses among the products of floats on oneDNN (onednn_gemm.h), of narrower
// types (widened_gemm.h) and of double (double_gemm.h).

#include <omp.h>

#include <algorithm>
#include <vector>

#include "machine/device/host/double_gemm.h"
#include "machine/device/host/kernels.h"
#include "machine/device/host/onednn_gemm.h"
#include "machine/device/host/widened_gemm.h"
#include "machine/device/kernels/fields.h"

namespace machine::host {
namespace {

void scale_only(const Matrix& c, float beta) {
  visit(c.dtype, [&]<class T>(T) {
    using Value = kernel::Value<T>;
    for (std::int64_t outer = 0; outer < c.batch[0]; ++outer)
      for (std::int64_t inner = 0; inner < c.batch[1]; ++inner) {
        T* const to = static_cast<T*>(c.data) + c.offset(outer, inner);
        for (std::int64_t row = 0; row < c.rows; ++row)
          for (std::int64_t col = 0; col < c.cols; ++col) {
            T& out = to[row * c.row_stride + col * c.col_stride];
            out =
                beta == 0 ? T(0) : kernel::narrow<T>(static_cast<Value>(beta) * kernel::widen(out));
          }
      }
  });
}

}  // namespace

void multiply(const Matrix& a, const Matrix& b, const Matrix& c, float alpha, float beta,
              int threads, Scratch& scratch) {
  if (a.cols == 0) return scale_only(c, beta);
  // The products below write row-major results, so compute the transposed product.
  if (c.col_stride != 1)
    return multiply(b.transposed(), a.transposed(), c.transposed(), alpha, beta, threads, scratch);

  // Each thread needs at least some ten microseconds of work.
  constexpr double least_flops = 1e6;
  const double flops = 2 * static_cast<double>(c.rows * c.cols) * static_cast<double>(a.cols) *
                       static_cast<double>(c.batch[0] * c.batch[1]);
  threads = static_cast<int>(std::clamp(flops / least_flops, 1.0, static_cast<double>(threads)));
#ifdef __SANITIZE_THREAD__
  threads = 1;  // the OpenMP runtime's own synchronization is invisible to the thread sanitizer
#endif
  if (a.dtype == Dtype::float64)
    return multiply_doubles(a, b, c, static_cast<double>(alpha), static_cast<double>(beta),
                            threads);
  if ((a.dtype == Dtype::float32 || (a.dtype == Dtype::bfloat16 && multiplies_bfloat16())) &&
      multiply_by_onednn(a, b, c, alpha, beta, threads))
    return;
  multiply_widened(a, b, c, alpha, beta, threads, scratch);
}

}  // namespace machine::host
