#pragma once
// The CUDA runtime with its errors thrown: SHARDMARK_CUDA(device, cudaMalloc(&data, bytes)).

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "machine/device/kernels.h"

namespace machine::cuda {

// Throws MachineError naming the call, the device and what to do.
[[noreturn]] void fail(int device, const char* call, cudaError_t status);

inline void check(int device, const char* call, cudaError_t status) {
  if (status != cudaSuccess) fail(device, call, status);
}

#define SHARDMARK_CUDA(device, call) ::machine::cuda::check(device, #call, call)

inline void make_current(int device) { SHARDMARK_CUDA(device, cudaSetDevice(device)); }

// Memory of a stream's own kernels, for partial sums; not a tensor, so on no ledger. Grows.
class Scratch {
 public:
  Scratch(int device, cudaStream_t stream) : device_(device), stream_(stream) {}
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void* at_least(std::size_t bytes);

 private:
  int device_;
  cudaStream_t stream_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

std::unique_ptr<Kernels> make_kernels(int device, cudaStream_t stream);

}  // namespace machine::cuda
