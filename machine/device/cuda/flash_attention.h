#pragma once
// Blockwise attention on a CUDA device: tensor cores for bfloat16 and half with heads up to 128,
// else plain fused multiply-adds.

#include <cstddef>
#include <set>
#include <string>

#include "machine/device/cuda/runtime.h"
#include "machine/device/flash_attention.h"

namespace machine::cuda {

// The attention of one stream.
class AttentionKernels {
 public:
  explicit AttentionKernels(const Queue& queue);

  // Returns an error text if a block of the device has too little shared memory.
  std::string why_not(Dtype dtype, std::int64_t head) const;
  // machine::flash_attention and its backward check the arguments. No result is empty.
  void forward(const AttentionForward& call);
  void backward(const AttentionBackward& call);

 private:
  template <class T>
  class Launch;

  int device_;
  cudaStream_t stream_;
  Scratch scratch_;
  std::size_t most_shared_ = 0;     // of a block, in bytes
  std::set<const void*> opted_in_;  // the kernels that may use it
};

}  // namespace machine::cuda
