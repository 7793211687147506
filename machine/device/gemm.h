#pragma once
// Matrix products on oneDNN (host) and cuBLASLt (CUDA): c = alpha * a b + beta * c, in batches.
//
// A Matrix describes the layout of elements: transposition swaps strides, and the heads of an
// attention are a batch. Products accumulate in float (double for double) for every element type
// and are rounded once when c is written.
//
//   gemm(stream, matrix(x), matrix(weight).transposed(), matrix(y));   // y = x Wᵀ

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "machine/device/device.h"
#include "machine/device/dtype.h"
#include "machine/device/tensor.h"

namespace machine {

struct Matrix {
  void* data = nullptr;
  Dtype dtype = Dtype::float32;
  std::int64_t rows = 0, cols = 0;
  std::int64_t row_stride = 0, col_stride = 1;     // in elements; one of them is 1
  std::array<std::int64_t, 2> batch{1, 1};         // outer, inner
  std::array<std::int64_t, 2> batch_stride{0, 0};  // in elements

  // Returns the offset in elements from data to matrix [outer, inner] of the batch.
  std::int64_t offset(std::int64_t outer, std::int64_t inner) const {
    return outer * batch_stride[0] + inner * batch_stride[1];
  }
  Matrix transposed() const {
    Matrix result = *this;
    std::swap(result.rows, result.cols);
    std::swap(result.row_stride, result.col_stride);
    return result;
  }
};

// Returns a tensor [rows, cols] (leading extents folded into rows) as one matrix.
Matrix matrix(const Tensor& tensor);

// [m, k] x [k, n] -> [m, n] for every batch. Throws std::logic_error if extents or dtypes disagree.
// a, b and c share one dtype, but c may be float if a and b are bfloat16 or half.
void gemm(Stream& stream, const Matrix& a, const Matrix& b, const Matrix& c, float alpha = 1,
          float beta = 0);

// c = a b + bias in one call of the device's library, with bias [c's columns] in every row. With
// sums: sums = a b + bias and c = gelu(a b + bias), in the tanh form of kernels.h, where the input
// of GELU is not rounded first. Returns false, and writes nothing, if the library cannot do this:
// on the host, in double, and for rows that it cannot align. Then call gemm, add_bias and gelu.
bool fused_gemm(Stream& stream, const Matrix& a, const Matrix& b, const Tensor& bias,
                const Tensor& sums, const Tensor& c);

// Logs, while it exists, the products for which this thread calls gemm or fused_gemm, in order. A
// thread has at most one log at a time.
class GemmLog {
 public:
  struct Product {
    Matrix a, b, c;
    float alpha = 1, beta = 0;
    double flops() const;  // two per term: a multiplication and an addition
  };
  GemmLog();
  ~GemmLog();
  GemmLog(const GemmLog&) = delete;
  GemmLog& operator=(const GemmLog&) = delete;
  const std::vector<Product>& products() const { return products_; }

 private:
  friend void gemm(Stream&, const Matrix&, const Matrix&, const Matrix&, float, float);
  friend bool fused_gemm(Stream&, const Matrix&, const Matrix&, const Tensor&, const Tensor&,
                         const Tensor&);
  std::vector<Product> products_;
};

}  // namespace machine
