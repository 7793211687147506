#include "machine/device/kernels/optimizer_kernels.h"

#include "machine/device/host/launch.h"

extern template class machine::kernel::ElementKernels<machine::HostLaunch>;
extern template class machine::kernel::RowKernels<machine::HostLaunch>;
extern template class machine::kernel::ColumnKernels<machine::HostLaunch>;
extern template class machine::kernel::BlockKernels<machine::HostLaunch>;
template class machine::kernel::OptimizerKernels<machine::HostLaunch>;
