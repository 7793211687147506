#pragma once
// The tensors of an elementwise kernel: In reads, Out writes, InOut does both. A kernel's body is a
// functor over values, so conversions, vector accesses and launches are written once:
//
//   launch.each(count, Add{}, In<T>(a), In<T>(b), Out<T>(out));    // body(a[i], b[i], out[i])
//
// A value has the type of the arithmetic: float for narrower floating types, else the element's own
// type.

#include <cstdint>

#include "machine/device/dtype.h"
#include "machine/device/kernels.h"

namespace machine::kernel {

template <class T>
using Value = Accumulator<T>;

template <class T>
SHARDMARK_BOTH constexpr Value<T> widen(T element) {
  return static_cast<Value<T>>(element);
}

template <class T>
SHARDMARK_BOTH constexpr T narrow(Value<T> value) {
  return T(value);
}

// A slot is one element on its way through a body.
template <class T>
struct ReadSlot {
  Value<T> value;
  SHARDMARK_BOTH void finish() const {}
};

template <class T>
struct WriteSlot {
  T* where;
  Value<T> value;
  SHARDMARK_BOTH void finish() const { *where = narrow<T>(value); }
};

template <class T>
struct In {
  using Element = T;
  static constexpr bool reads = true, writes = false;
  const T* data;
  explicit In(const Tensor& tensor) : data(tensor.as<T>()) {}
  explicit In(const void* memory) : data(static_cast<const T*>(memory)) {}
  SHARDMARK_BOTH static ReadSlot<T> slot(const T* where) { return {widen(*where)}; }
};

template <class T>
struct Out {
  using Element = T;
  static constexpr bool reads = false, writes = true;
  T* data;
  explicit Out(const Tensor& tensor) : data(tensor.as<T>()) {}
  explicit Out(void* memory) : data(static_cast<T*>(memory)) {}
  SHARDMARK_BOTH static WriteSlot<T> slot(T* where) { return {where, Value<T>{}}; }
};

template <class T>
struct InOut {
  using Element = T;
  static constexpr bool reads = true, writes = true;
  T* data;
  explicit InOut(const Tensor& tensor) : data(tensor.as<T>()) {}
  explicit InOut(void* memory) : data(static_cast<T*>(memory)) {}
  SHARDMARK_BOTH static WriteSlot<T> slot(T* where) { return {where, widen(*where)}; }
};

template <class Field>
SHARDMARK_BOTH inline Field shifted(Field field, std::int64_t elements) {
  field.data += elements;
  return field;
}

// The rows of a matrix, stride elements apart. Each row is a field.
template <class Field>
struct Strided {
  using Element = typename Field::Element;
  Field field;
  std::int64_t stride;
  explicit Strided(const Matrix& matrix) : field(matrix.data), stride(matrix.row_stride) {}
  SHARDMARK_BOTH Field row(std::int64_t index) const { return shifted(field, index * stride); }
};

// The index of element i of a shard (rows of cols) in its global matrix.
struct GlobalIndex {
  std::int64_t cols;
  Region region;
  GlobalIndex(std::int64_t shard_cols, const Region& of) : cols(shard_cols), region(of) {
    if (region.global_cols == 0) region.global_cols = cols;
  }
  SHARDMARK_BOTH std::uint64_t operator()(std::int64_t i) const {
    const std::int64_t row = region.row + i / cols, col = region.col + i % cols;
    return static_cast<std::uint64_t>(row * region.global_cols + col);
  }
};

template <class Body, class... Slots>
SHARDMARK_BOTH inline void apply(const Body& body, Slots... slots) {
  body(slots.value...);
  (slots.finish(), ...);
}

template <class Body, class... Slots>
SHARDMARK_BOTH inline void apply_at(const Body& body, std::uint64_t index, Slots... slots) {
  body(index, slots.value...);
  (slots.finish(), ...);
}

}  // namespace machine::kernel
