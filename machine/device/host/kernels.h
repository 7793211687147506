#pragma once
// The host's Kernels, on the calling thread and the device's other threads.

#include <cstddef>
#include <memory>

#include "machine/device/device.h"
#include "machine/device/kernels.h"

namespace machine::host {

std::unique_ptr<Kernels> make_kernels(const Device& device);

// Scratch memory for the threads of a stream's own kernels. Not a tensor, so no ledger counts it.
// Grows.
class Scratch {
 public:
  void* at_least(std::size_t bytes);  // aligned to a cache line, its contents undefined

 private:
  struct Free {
    void operator()(void* data) const;
  };
  std::unique_ptr<void, Free> data_;
  std::size_t bytes_ = 0;
};

// machine::flash_attention and its backward check the arguments. No result is empty.
void attend(const AttentionForward& call, int threads, Scratch& scratch);
void attend_backward(const AttentionBackward& call, int threads, Scratch& scratch);

// machine::gemm checks the arguments: no extent of c is zero; a.cols may be.
void multiply(const Matrix& a, const Matrix& b, const Matrix& c, float alpha, float beta,
              int threads, Scratch& scratch);

}  // namespace machine::host
