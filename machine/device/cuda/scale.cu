
#include "machine/device/cuda/gemm.h"
#include "machine/device/cuda/ptx.cuh"
#include "machine/device/kernels/fields.h"

namespace machine::cuda {
namespace {

template <class T>
__global__ void scale_kernel(Matrix c, float beta, std::int64_t outer_stride,
                             std::int64_t inner_stride, std::int64_t inner, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const std::int64_t col = i % c.cols, row = i / c.cols % c.rows, batch = i / (c.cols * c.rows);
  T& element = static_cast<T*>(c.data)[batch / inner * outer_stride + batch % inner * inner_stride +
                                       row * c.row_stride + col * c.col_stride];
  using A = kernel::Value<T>;
  // If beta is zero, c is not read, because it may hold NaN.
  element = beta == 0 ? T(A(0)) : kernel::narrow<T>(static_cast<A>(beta) * kernel::widen(element));
}

}  // namespace

void scale(int device, cudaStream_t stream, const Matrix& c, float beta) {
  constexpr int threads = 256;
  const std::int64_t count = c.rows * c.cols * c.batch[0] * c.batch[1];
  const auto blocks = static_cast<unsigned>((count + threads - 1) / threads);
  make_current(device);
  visit(c.dtype, [&]<class T>(T) {
    SHARDMARK_LAUNCH(scale_kernel<T>, blocks, threads, 0, stream, c, beta, c.batch_stride[0],
                     c.batch_stride[1], c.batch[1], count);
  });
  check(device, "the scaling of a matrix", cudaGetLastError());
}

}  // namespace machine::cuda
