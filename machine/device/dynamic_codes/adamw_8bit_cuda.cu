#include "machine/device/dynamic_codes/adamw_8bit_cuda.h"

#include "machine/device/cuda/launch.cuh"
#include "machine/device/dynamic_codes/adamw_8bit_bodies.h"

namespace machine::cuda {

void adamw_8bit(Stream& stream, const Tensor& gradient, const kernel::AdamwStep<float>& step,
                const std::uint8_t* decay_mask, const Tensor& master, const Moments8Bit& moments,
                const Tensor& weight) {
  kernel::run_adamw_8bit<kernel::AdamwOfBlock>(CudaLaunch(stream), gradient, step, decay_mask,
                                               master, moments, weight);
}

}  // namespace machine::cuda
