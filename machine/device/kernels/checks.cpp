#include "machine/device/kernels/checks.h"

#include "machine/device/error.h"

namespace machine::kernel {

void check_kind(Device::Kind kind, std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* tensor : tensors) {
    if (!*tensor) throw std::logic_error("a kernel was given an empty tensor");
    if (tensor->device().kind() != kind) {
      throw std::logic_error(
          fmt::format("a tensor {} on {} was given to a kernel of another device",
                      tensor->shape().text(), tensor->device().description()));
    }
  }
}

void check_sizes(std::int64_t size, std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* tensor : tensors) SHARDMARK_CHECK(tensor->size(), ==, size);
}

void check_dtypes(Dtype dtype, std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* tensor : tensors) SHARDMARK_CHECK(name(tensor->dtype()), ==, name(dtype));
}

void check_equal(const char* what, std::int64_t left, std::int64_t right) {
  if (left != right) throw std::logic_error(fmt::format("{}: {} against {}", what, left, right));
}

void refuse_dtypes(const char* kernel, Dtype in, Dtype out) {
  throw std::logic_error(fmt::format("{}: cannot take {} into {}", kernel, name(in), name(out)));
}

}  // namespace machine::kernel
