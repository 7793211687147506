#pragma once
// The host's Kernels, on the calling thread and as many more as the device has.

#include <memory>

#include "machine/device/device.h"
#include "machine/device/kernels.h"

namespace machine::host {

std::unique_ptr<Kernels> make_kernels(const Device& device);

// Checked by machine::gemm: no extent of c is zero; a.cols may be.
void multiply(const Matrix& a, const Matrix& b, const Matrix& c, float alpha, float beta,
              int threads);

}  // namespace machine::host
