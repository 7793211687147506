#pragma once
// CUDA runtime calls that throw their errors: SHARDMARK_CUDA(device, cudaMalloc(&data, bytes)).

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>

#include "machine/device/device.h"
#include "machine/device/kernels.h"

namespace machine::cuda {

// Throws MachineError naming the call, the device and the remedy.
[[noreturn]] void fail(int device, const char* call, cudaError_t status);

inline void check(int device, const char* call, cudaError_t status) {
  if (status != cudaSuccess) fail(device, call, status);
}

#define SHARDMARK_CUDA(device, call) ::machine::cuda::check(device, #call, call)

inline void make_current(int device) { SHARDMARK_CUDA(device, cudaSetDevice(device)); }

// A stream, with the number and the owner of its device.
struct Queue {
  const Device& owner;
  int device;
  cudaStream_t stream;
};

// Memory for partial sums of a stream's own kernels. Not a tensor, so no ledger counts it. Grows.
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

class GraphMemory;

std::unique_ptr<Kernels> make_kernels(const Queue& queue);
// Stream::capture.
std::unique_ptr<Graph> capture(const Queue& queue, GraphMemory& memory,
                               const std::function<void()>& queue_work);
// Makes a gate in a stream: a kernel of one thread that waits for a word in host memory.
std::unique_ptr<Gate> make_gate(const Queue& queue, double deadline_s);

}  // namespace machine::cuda
