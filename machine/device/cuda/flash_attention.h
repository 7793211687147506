#pragma once
// Blockwise attention on a CUDA device: tensor cores for bfloat16 and half with heads up to 128,
// else plain fused multiply-adds.

#include "machine/device/cuda/runtime.h"
#include "machine/device/flash_attention.h"

namespace machine::cuda {

// machine::flash_attention and its backward check the arguments. No result is empty.
void attend(int device, cudaStream_t stream, const AttentionForward& call);
void attend_backward(int device, cudaStream_t stream, const AttentionBackward& call,
                     Scratch& scratch);

}  // namespace machine::cuda
