#pragma once
// Block-sparse attention on a CUDA device. Builds without CUDA have no such device.

#include <memory>

#include "machine/device/device.h"
#include "machine/device/kernels/block_lists.h"

namespace machine::cuda {

// Copies the lists to the device, as scratch. The device must outlive the result, which runs in
// device.stream().
std::unique_ptr<kernel::SparseKernels> make_sparse_kernels(Device& device,
                                                           const kernel::BlockLists& lists);

}  // namespace machine::cuda
