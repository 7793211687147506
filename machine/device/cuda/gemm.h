#pragma once
// A stream's GEMM on cuBLASLt: its handle, its workspace, and the algorithm chosen for each shape.

#include <memory>

#include "machine/device/cuda/runtime.h"
#include "machine/device/gemm.h"

namespace machine::cuda {

class Multiplier {
 public:
  explicit Multiplier(const Queue& queue);
  ~Multiplier();
  // machine::gemm checks the arguments: no extent of c is zero; a.cols may be.
  void multiply(const Matrix& a, const Matrix& b, const Matrix& c, float alpha, float beta);
  // machine::fused_gemm. Returns false if cuBLASLt has no such product.
  bool multiply_fused(const Matrix& a, const Matrix& b, const Matrix& c, const void* bias,
                      void* sums);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// c = beta * c, for products with a.cols == 0. Defined in scale.cu.
void scale(int device, cudaStream_t stream, const Matrix& c, float beta);

}  // namespace machine::cuda
