#include "machine/device/kernels/element_kernels.h"

#include "machine/device/cuda/launch.cuh"

template class machine::kernel::ElementKernels<machine::CudaLaunch>;
