#include "machine/device/kernels/row_kernels.h"

#include "machine/device/cuda/launch.cuh"

extern template class machine::kernel::ElementKernels<machine::CudaLaunch>;
template class machine::kernel::RowKernels<machine::CudaLaunch>;
