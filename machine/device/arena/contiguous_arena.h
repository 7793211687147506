#pragma once
// One allocation, made in advance, in which long-lived tensors are adjacent. It separates them from
// short-lived tensors: memory defragmentation, M_D of ZeRO-R (Rajbhandari et al. 2020,
// arXiv:1910.02054, section 6.3). DeepSpeed has it for activation checkpoints
// (contiguous_memory_optimization) and for gradients (contiguous_gradients).
//
//   ContiguousArena checkpoints(device, dtype, layers * tokens * hidden, Category::activations);
//   const Tensor x = checkpoints.take({tokens, hidden});    // for each layer, in forward
//   checkpoints.clear();                                    // after backward
//
// The ledger counts the whole arena while it exists, however many elements are taken.

#include <cstdint>

#include "machine/device/tensor.h"

namespace machine {

class ContiguousArena {
 public:
  // With 0 elements, the arena is always full.
  ContiguousArena(Device& device, Dtype dtype, std::int64_t elements, Category category)
      : whole_(device, dtype, {elements}, category) {}

  // Takes the next free elements. Throws MachineError naming the shape, and the numbers of elements
  // left and in total.
  Tensor take(Shape shape);
  // Frees all elements. Callers no longer use the tensors that they took.
  void clear() { taken_ = 0; }

  const Tensor& whole() const { return whole_; }
  std::int64_t left() const { return whole_.size() - taken_; }

 private:
  Tensor whole_;
  std::int64_t taken_ = 0;
};

}  // namespace machine
