#pragma once
// Block-sparse attention on the host, in host/flash_attention.cpp.

#include <memory>

#include "machine/device/device.h"
#include "machine/device/sparse/block_lists.h"

namespace machine::host {

// The device must outlive the result.
std::unique_ptr<kernel::SparseKernels> make_sparse_kernels(const Device& device,
                                                           kernel::BlockLists lists);

}  // namespace machine::host
