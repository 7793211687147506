// Products of 8-bit codes compared with the documentation (cuBLAS, "Narrow Precision Data Types
// Usage"): one product by hand, and each broken requirement.

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "machine/virtual_gpu/errors.h"

namespace machine::virtual_gpu {
namespace {

constexpr std::uint8_t one = 0x38;  // in E4M3

// A product [16, 16] of ones over 32 terms, with the scales 2 and 3. Each test breaks one thing.
class CodesProduct : public testing::Test {
 protected:
  static constexpr int rows = 16, cols = 16, depth = 32;

  void SetUp() override {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
    a_ = make(std::vector<std::uint8_t>(rows * depth, one));
    b_ = make(std::vector<std::uint8_t>(cols * depth, one));
    c_ = make(std::vector<float>(rows * cols, 1));
    scale_a_ = make(std::vector<float>(64, 2));
    scale_b_ = make(std::vector<float>(64, 3));
  }
  void TearDown() override {
    cublasLtDestroy(handle_);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    for (void* memory : memory_) EXPECT_EQ(cudaFree(memory), cudaSuccess);
    mend_device(0);
    cudaGetLastError();
  }
  void copy(void* to, const void* from, std::size_t bytes) {
    EXPECT_EQ(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }
  template <class T>
  std::byte* make(const std::vector<T>& values) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, values.size() * sizeof(T)), cudaSuccess);
    copy(memory, values.data(), values.size() * sizeof(T));
    memory_.push_back(memory);
    return static_cast<std::byte*>(memory);
  }

  struct Call {
    cublasOperation_t operation_a = CUBLAS_OP_T;
    cudaDataType type_a = CUDA_R_8F_E4M3, type_b = CUDA_R_8F_E4M3, type_c = CUDA_R_32F;
    int mode_a = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, mode_b = mode_a;
    int depth = CodesProduct::depth, leading = CodesProduct::depth;
    const void *a = nullptr, *scale_a = nullptr, *scale_b = nullptr;
  };
  Call whole() const {
    Call call;
    call.a = a_, call.scale_a = scale_a_, call.scale_b = scale_b_;
    return call;
  }
  // Returns the first result, or prints the status.
  cublasStatus_t run(const Call& call) {
    cublasLtMatmulDesc_t product;
    cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
      EXPECT_EQ(cublasLtMatmulDescSetAttribute(product, attribute, &value, sizeof value),
                CUBLAS_STATUS_SUCCESS);
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, call.operation_a);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, call.mode_a);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, call.mode_b);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, call.scale_a);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, call.scale_b);
    cublasLtMatrixLayout_t a, b, c;
    const bool turned = call.operation_a == CUBLAS_OP_T;
    cublasLtMatrixLayoutCreate(&a, call.type_a, turned ? call.depth : rows,
                               turned ? rows : call.depth, turned ? call.leading : rows);
    cublasLtMatrixLayoutCreate(&b, call.type_b, call.depth, cols, call.depth);
    cublasLtMatrixLayoutCreate(&c, call.type_c, rows, cols, rows);
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulPreferenceCreate(&preference);
    std::array<cublasLtMatmulHeuristicResult_t, 2> results{};
    int found = 0;
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle_, product, a, b, c, c, preference,
                                                           2, results.data(), &found);
    const float alpha = 1, beta = 1;
    if (status == CUBLAS_STATUS_SUCCESS)
      status = cublasLtMatmul(handle_, product, &alpha, call.a, a, b_, b, &beta, c_, c, c_, c,
                              &results[1].algo, nullptr, 0, stream_);
    cublasLtMatmulPreferenceDestroy(preference);
    for (cublasLtMatrixLayout_t layout : {a, b, c}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(product);
    return status;
  }
  void expect_refused(const Call& call, const std::string& text) {
    testing::internal::CaptureStderr();
    EXPECT_NE(run(call), CUBLAS_STATUS_SUCCESS) << text;
    EXPECT_NE(testing::internal::GetCapturedStderr().find(text), std::string::npos) << text;
  }
  float first_result() {
    float result = 0;
    copy(&result, c_, sizeof result);
    return result;
  }

  cudaStream_t stream_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
  std::vector<void*> memory_;
  std::byte *a_ = nullptr, *b_ = nullptr, *c_ = nullptr, *scale_a_ = nullptr, *scale_b_ = nullptr;
};

TEST_F(CodesProduct, MultipliesTheScales) {
  EXPECT_EQ(run(whole()), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(first_result(), 32 * 2 * 3 + 1);
  Call call = whole();
  call.type_a = CUDA_R_8F_E5M2;  // in which the same bits are a half
  EXPECT_EQ(run(call), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(first_result(), 32 * 2 * 3 + 1 + 0.5F * 32 * 2 * 3);
}

TEST_F(CodesProduct, NamesABrokenRequirement) {
  const auto refused = [&](const char* text, auto change) {
    Call call = whole();
    change(call);
    expect_refused(call, text);
  };
  refused("A must be transposed", [](Call& c) { c.operation_a = CUBLAS_OP_N; });
  refused("A and B must be", [](Call& c) { c.type_a = c.type_b = CUDA_R_8F_E5M2; });
  refused("A and B must be", [](Call& c) { c.type_b = CUDA_R_16BF; });
  refused("D must be float", [](Call& c) { c.type_c = CUDA_R_8F_E4M3; });
  refused("multiples of 16", [](Call& c) { c.depth = 24; });
  refused("multiples of 16", [](Call& c) { c.leading = 40; });
  refused("the scale of A of 4 bytes is", [](Call& c) { c.scale_a = nullptr; });
  const float host = 2;
  refused("the scale of B of 4 bytes is", [&](Call& c) { c.scale_b = &host; });
  refused("A is not aligned to 16 bytes", [&](Call& c) { c.a = a_ + 1, c.depth = c.leading = 16; });
  refused("require compute capability 10.0",
          [](Call& c) { c.mode_a = c.mode_b = CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0; });
  refused("cannot be combined",
          [](Call& c) { c.mode_a = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F; });
  refused("cannot be combined",
          [](Call& c) { c.mode_a = c.mode_b = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F; });
  refused("the scale of A is not aligned to 16 bytes", [&](Call& c) {
    c.mode_a = c.mode_b = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    c.scale_a = scale_a_ + 4;
  });
  refused("scales require 8-bit operands",
          [](Call& c) { c.type_a = c.type_b = c.type_c = CUDA_R_16BF; });
}

}  // namespace
}  // namespace machine::virtual_gpu
