#pragma once
// The host's Kernels. Its GEMM (gemm.cpp) is the only one that uses more than the calling thread.

#include <memory>

#include "machine/device/device.h"
#include "machine/device/kernels.h"

namespace machine::host {

std::unique_ptr<Kernels> make_kernels(const Device& device);

// Checked by machine::gemm: no extent of c is zero; a.cols may be.
void multiply(const Matrix& a, const Matrix& b, const Matrix& c, float alpha, float beta,
              int threads);

}  // namespace machine::host
