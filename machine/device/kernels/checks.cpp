#include "machine/device/kernels/checks.h"

#include <fmt/format.h>

#include "machine/base/error.h"

namespace machine::kernel {

void check_kind(Device::Kind kind, std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* tensor : tensors) {
    if (!*tensor) throw std::logic_error("a tensor of this kernel call is empty");
    if (tensor->device().kind() != kind)
      throw std::logic_error(fmt::format("a tensor {} on {} is not on the device of this kernel",
                                         tensor->shape().text(), tensor->device().description()));
  }
}

void check_sizes(std::int64_t size, std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* tensor : tensors) SHARDMARK_CHECK(tensor->size(), ==, size);
}

void check_dtypes(Dtype dtype, std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* tensor : tensors) SHARDMARK_CHECK(name(tensor->dtype()), ==, name(dtype));
}

void check_equal(const char* what, std::int64_t left, std::int64_t right) {
  if (left != right) throw std::logic_error(fmt::format("{}: {} vs {}", what, left, right));
}

void check_heads(const char* kernel, const Matrix& first,
                 std::initializer_list<const Matrix*> others) {
  const auto alike = [&](const char* what, std::int64_t left, std::int64_t right) {
    if (left != right)
      throw std::logic_error(fmt::format("{}: {}: {} vs {}", kernel, what, left, right));
  };
  const auto contiguous = [&](const Matrix& matrix) {
    if (matrix.cols > 1) alike("stride of columns", matrix.col_stride, 1);
  };
  contiguous(first);
  for (const Matrix* other : others) {
    contiguous(*other);
    SHARDMARK_CHECK(name(other->dtype), ==, name(first.dtype));
    alike("rows", other->rows, first.rows);
    alike("columns", other->cols, first.cols);
    for (const std::size_t level : {0, 1})
      alike("batches", other->batch[level], first.batch[level]);
  }
}

void check_rows(const char* kernel, const Matrix& first,
                std::initializer_list<const Matrix*> others) {
  check_heads(kernel, first, others);
  if (first.batch[0] * first.batch[1] != 1)
    throw std::logic_error(fmt::format("{}: the number of batches is {}; expected 1", kernel,
                                       first.batch[0] * first.batch[1]));
}

void check_probability(const char* kernel, double probability) {
  if (!(probability >= 0 && probability < 1))
    throw std::logic_error(fmt::format("{}: the probability must lie in [0, 1)", kernel));
}

void refuse_dtypes(const char* kernel, Dtype in, Dtype out) {
  throw std::logic_error(
      fmt::format("{}: unsupported dtypes: {} into {}", kernel, name(in), name(out)));
}

}  // namespace machine::kernel
