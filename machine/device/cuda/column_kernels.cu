#include "machine/device/kernels/optimizer_kernels.h"

#include "machine/device/cuda/flash_attention.h"
#include "machine/device/cuda/gemm.h"
#include "machine/device/cuda/launch.cuh"
#include "machine/device/float8/scaled_gemm_cuda.h"

namespace machine {

extern template class kernel::ElementKernels<CudaLaunch>;
extern template class kernel::RowKernels<CudaLaunch>;
template class kernel::ColumnKernels<CudaLaunch>;
extern template class kernel::BlockKernels<CudaLaunch>;
extern template class kernel::OptimizerKernels<CudaLaunch>;

namespace cuda {
namespace {

class CudaKernels final : public kernel::OptimizerKernels<CudaLaunch> {
 public:
  explicit CudaKernels(const Queue& queue)
      : OptimizerKernels(CudaLaunch(queue)),
        multiplier_(queue),
        scaled_multiplier_(multiplier_),
        attention_(queue) {}
  ScaledMultiplier& scaled_multiplier() { return scaled_multiplier_; }

 private:
  void do_gemm(const Matrix& a, const Matrix& b, const Matrix& c, float alpha,
               float beta) override {
    multiplier_.multiply(a, b, c, alpha, beta);
  }
  bool do_fused_gemm(const Matrix& a, const Matrix& b, const Matrix& c, const void* bias,
                     void* sums) override {
    return multiplier_.multiply_fused(a, b, c, bias, sums);
  }
  std::string why_not_attention(Dtype dtype, std::int64_t head) const override {
    return attention_.why_not(dtype, head);
  }
  void do_attention(const AttentionForward& call) override { attention_.forward(call); }
  void do_attention_backward(const AttentionBackward& call) override { attention_.backward(call); }
  Multiplier multiplier_;
  ScaledMultiplier scaled_multiplier_;
  AttentionKernels attention_;
};

}  // namespace

std::unique_ptr<Kernels> make_kernels(const Queue& queue) {
  return std::make_unique<CudaKernels>(queue);
}

ScaledMultiplier& scaled_multiplier_of(Stream& stream) {
  return dynamic_cast<CudaKernels&>(stream.kernels()).scaled_multiplier();
}

}  // namespace cuda
}  // namespace machine
