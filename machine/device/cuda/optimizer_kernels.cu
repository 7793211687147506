#include "machine/device/kernels/optimizer_kernels.h"

#include "machine/device/cuda/launch.cuh"

extern template class machine::kernel::ElementKernels<machine::CudaLaunch>;
extern template class machine::kernel::RowKernels<machine::CudaLaunch>;
extern template class machine::kernel::ColumnKernels<machine::CudaLaunch>;
extern template class machine::kernel::BlockKernels<machine::CudaLaunch>;
template class machine::kernel::OptimizerKernels<machine::CudaLaunch>;
