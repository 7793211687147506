#include "machine/device/kernels/block_kernels.h"

#include "machine/device/cuda/gemm.h"
#include "machine/device/cuda/launch.cuh"

namespace machine {

extern template class kernel::ElementKernels<CudaLaunch>;
extern template class kernel::RowKernels<CudaLaunch>;
template class kernel::ColumnKernels<CudaLaunch>;
extern template class kernel::BlockKernels<CudaLaunch>;

namespace cuda {
namespace {

class CudaKernels final : public kernel::BlockKernels<CudaLaunch> {
 public:
  CudaKernels(int device, cudaStream_t stream)
      : BlockKernels(CudaLaunch(device, stream)), multiplier_(device, stream) {}

 private:
  void do_gemm(const Matrix& a, const Matrix& b, const Matrix& c, float alpha,
               float beta) override {
    multiplier_.multiply(a, b, c, alpha, beta);
  }
  Multiplier multiplier_;
};

}  // namespace

std::unique_ptr<Kernels> make_kernels(int device, cudaStream_t stream) {
  return std::make_unique<CudaKernels>(device, stream);
}

}  // namespace cuda
}  // namespace machine
