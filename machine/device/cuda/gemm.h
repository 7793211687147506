#pragma once
// A stream's GEMM on cuBLASLt: its handle, its workspace, and the algorithm chosen for each shape.

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "machine/device/cuda/runtime.h"
#include "machine/device/gemm.h"

namespace machine::cuda {

// Throws MachineError that names the call and the device.
void check_cublas(int device, const char* call, cublasStatus_t status);
#define SHARDMARK_CUBLAS(call) ::machine::cuda::check_cublas(device, #call, call)

cudaDataType_t data_type(Dtype dtype);

// Owns one of cuBLASLt's opaque descriptions.
template <class Handle, cublasStatus_t (*destroy)(Handle)>
struct Owned {
  Handle handle = nullptr;
  Owned() = default;
  Owned(Owned&& other) noexcept { std::swap(handle, other.handle); }
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle, other.handle);
    return *this;
  }
  ~Owned() {
    if (handle) destroy(handle);
  }
};
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

// A product c = b a of cuBLASLt's column-major matrices, and its algorithm.
struct Plan {
  Description product;
  Layout b, a, c;
  cublasLtMatmulAlgo_t algorithm;
};

// Returns a power of two that divides every address of an operand, in bytes, at most 256.
int alignment_of(std::uintptr_t address);
struct Alignments {
  int b, a, c;
};

class Multiplier {
 public:
  explicit Multiplier(const Queue& queue);
  ~Multiplier();
  // machine::gemm checks the arguments: no extent of c is zero; a.cols may be.
  void multiply(const Matrix& a, const Matrix& b, const Matrix& c, float alpha, float beta);
  // machine::fused_gemm. Returns false if cuBLASLt has no such product.
  bool multiply_fused(const Matrix& a, const Matrix& b, const Matrix& c, const void* bias,
                      void* sums);

  // For other products of the same stream. Gives the described plan the best algorithm, or returns
  // the reason that there is none.
  cublasStatus_t choose(Plan& plan, const Alignments& alignments);
  // alpha and beta: in the product's scale type.
  void run(const Plan& plan, const void* alpha, const void* b, const void* a, const void* beta,
           void* c);
  int device() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// c = beta * c, for products with a.cols == 0. Defined in scale.cu.
void scale(int device, cudaStream_t stream, const Matrix& c, float beta);

}  // namespace machine::cuda
