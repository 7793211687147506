#include "machine/device/kernels/row_kernels.h"

#include "machine/device/cuda/internals.h"
#include "machine/device/cuda/launch.cuh"
#include "machine/device/kernels/split_norm_kernels.h"

extern template class machine::kernel::ElementKernels<machine::CudaLaunch>;
template class machine::kernel::RowKernels<machine::CudaLaunch>;

namespace machine {

std::unique_ptr<SplitNorm> cuda::make_split_norm(Device& device) {
  const Internals of = internals(device);
  return std::make_unique<kernel::SplitNormKernels<CudaLaunch>>(
      CudaLaunch({device, of.index, of.stream}));
}

}  // namespace machine
