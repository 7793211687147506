#pragma once
// oneDNN called directly, as a yardstick: y = x Wᵀ by the fastest matmul primitive that it has for
// plain row-major matrices of this shape.

#include <functional>

#include "machine/device/tensor.h"

namespace suite {

// x [m, k], weight [n, k], host memory, which the returned product uses; its result goes to memory
// of its own. Tries every implementation that oneDNN offers, with the weight as stored and
// transposed to [k, n] in advance, for about 20 ms each. Empty if oneDNN has only its reference
// kernel (half, double, bfloat16 on some processors). Runs on the device's threads.
std::function<void()> fastest_onednn_gemm(const machine::Tensor& x, const machine::Tensor& weight);

}  // namespace suite
