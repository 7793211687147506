#pragma once
// Checks of a kernel's tensors. Each check throws std::logic_error that prints both values.
// Separate from the templates, so that nvcc does not compile them.

#include <cstdint>
#include <initializer_list>

#include "machine/device/device.h"
#include "machine/device/gemm.h"
#include "machine/device/tensor.h"

namespace machine::kernel {

void check_kind(Device::Kind kind, std::initializer_list<const Tensor*> tensors);
void check_sizes(std::int64_t size, std::initializer_list<const Tensor*> tensors);
void check_dtypes(Dtype dtype, std::initializer_list<const Tensor*> tensors);
void check_equal(const char* what, std::int64_t left, std::int64_t right);
// Checks that the matrices have one shape, dtype and batch, and contiguous columns.
void check_heads(const char* kernel, const Matrix& first,
                 std::initializer_list<const Matrix*> others);
// Like check_heads, and checks that there are no batches.
void check_rows(const char* kernel, const Matrix& first,
                std::initializer_list<const Matrix*> others);
void check_probability(const char* kernel, double probability);  // of dropout: [0, 1)
[[noreturn]] void refuse_dtypes(const char* kernel, Dtype in, Dtype out);

// Returns the dtype of sums of elements of `dtype`.
constexpr Dtype sum_dtype(Dtype dtype) {
  return dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32;
}

// Calls visitor(In{}, Out{}) if out has in's dtype, or if out is float and in is bfloat16 or half.
template <class Visitor>
void visit_widening(const char* kernel, Dtype in, Dtype out, Visitor&& visitor) {
  visit(in, [&]<class T>(T) {
    if (out == in) return visitor(T{}, T{});
    if constexpr (sizeof(T) == 2)
      if (out == Dtype::float32) return visitor(T{}, float{});
    refuse_dtypes(kernel, in, out);
  });
}

}  // namespace machine::kernel
