#pragma once
// The CUDA runtime with its errors thrown: SHARDMARK_CUDA(device, cudaMalloc(&data, bytes)).

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "machine/device/device.h"
#include "machine/device/kernels.h"

namespace machine::cuda {

// Throws MachineError naming the call, the device and what to do.
[[noreturn]] void fail(int device, const char* call, cudaError_t status);

inline void check(int device, const char* call, cudaError_t status) {
  if (status != cudaSuccess) fail(device, call, status);
}

#define SHARDMARK_CUDA(device, call) ::machine::cuda::check(device, #call, call)

inline void make_current(int device) { SHARDMARK_CUDA(device, cudaSetDevice(device)); }

// A stream, and the device that it is of, by its number and as its owner.
struct Queue {
  const Device& owner;
  int device;
  cudaStream_t stream;
};

// Memory of a stream's own kernels, for partial sums; not a tensor, so on no ledger. Grows.
class Scratch {
 public:
  explicit Scratch(const Queue& queue) : queue_(queue) {}
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void* at_least(std::size_t bytes);

 private:
  Queue queue_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

std::unique_ptr<Kernels> make_kernels(const Queue& queue);
// A gate in a stream: a kernel of one thread that waits for a word in host memory.
std::unique_ptr<Gate> make_gate(const Queue& queue, double deadline_s);

}  // namespace machine::cuda
