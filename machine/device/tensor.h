#pragma once
// A dense row-major tensor on a device: a view (data, shape) that shares ownership of its memory.
// Copying a Tensor copies the view, never the elements.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "machine/device/device.h"
#include "machine/device/dtype.h"
#include "machine/device/memory.h"

namespace machine {

// Up to four extents, outermost first. An empty shape is a scalar: one element.
class Shape {
 public:
  static constexpr int max_rank = 4;
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents);
  int rank() const { return rank_; }
  std::int64_t operator[](int dim) const { return extents_[dim]; }
  std::int64_t size() const;  // elements
  bool operator==(const Shape&) const = default;
  std::string text() const;  // "[8, 64]"

 private:
  std::array<std::int64_t, max_rank> extents_{};
  int rank_ = 0;
};

class Tensor {
 public:
  Tensor() = default;  // empty: no device, no elements
  // Uninitialized memory, counted under `category` until the last view is destroyed.
  Tensor(Device& device, Dtype dtype, Shape shape, Category category);

  // Makes a tensor of the elements at the beginning of the memory.
  Tensor(Memory memory, Dtype dtype, Shape shape);

  explicit operator bool() const { return device_ != nullptr; }
  Device& device() const { return *device_; }
  Dtype dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::int64_t size() const { return device_ ? shape_.size() : 0; }
  std::size_t bytes() const { return static_cast<std::size_t>(size()) * size_of(dtype_); }
  // Extents as a matrix [rows, cols]. Higher ranks fold their leading extents into rows.
  std::int64_t cols() const { return shape_.rank() == 0 ? 1 : shape_[shape_.rank() - 1]; }
  std::int64_t rows() const { return cols() == 0 ? 0 : size() / cols(); }

  void* data() const { return data_; }
  template <class T>
  T* as() const {  // checks that T is the tensor's type
    check_type(dtype_of<T>);
    return static_cast<T*>(data_);
  }

  // Views of the same memory. Each checks that it lies inside this tensor.
  Tensor reshape(Shape shape) const;
  Tensor slice(std::int64_t offset, Shape shape) const;  // offset in elements
  Tensor row_range(std::int64_t begin, std::int64_t count) const;

 private:
  void check_type(Dtype wanted) const;
  std::shared_ptr<Memory> memory_;
  Device* device_ = nullptr;
  void* data_ = nullptr;
  Dtype dtype_ = Dtype::float32;
  Shape shape_;
};

// For tests, oracles and figures, not for measured code. A double holds int64 and uint64 exactly
// only up to 2^53.
std::vector<double> to_doubles(const Tensor& tensor);  // copies to the host and widens
void from_doubles(const Tensor& tensor, const std::vector<double>& values);  // rounds to the dtype
std::uint64_t hash(const Tensor& tensor);                                    // of the bits

}  // namespace machine
