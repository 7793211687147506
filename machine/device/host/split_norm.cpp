#include "machine/device/host/launch.h"
#include "machine/device/kernels/split_norm_kernels.h"

namespace machine {

std::unique_ptr<SplitNorm> host::make_split_norm(Device& device) {
  return std::make_unique<kernel::SplitNormKernels<HostLaunch>>(HostLaunch(device));
}

}  // namespace machine
