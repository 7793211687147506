#pragma once
// The function of device/dynamic_codes/adamw_8bit.h on a CUDA stream. Its caller checks the
// arguments.

#include "machine/device/dynamic_codes/adamw_8bit.h"
#include "machine/device/kernels/optimizer_bodies.h"

namespace machine::cuda {

void adamw_8bit(Stream& stream, const Tensor& gradient, const kernel::AdamwStep<float>& step,
                const std::uint8_t* decay_mask, const Tensor& master, const Moments8Bit& moments,
                const Tensor& weight);

}  // namespace machine::cuda
