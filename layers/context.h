#pragma once
// What every layer of a rank works with: its device, its tensor-parallel group and the type its
// values have. Sums and statistics are kept in accumulator(): float, or double under double.
//
//   Context context{world.device(), tp, Dtype::bfloat16};
//   Tensor y = context.tensor({tokens, hidden}, Category::activations);

#include "collectives/communicator.h"
#include "machine/device/kernels.h"
#include "machine/device/tensor.h"

namespace layers {

struct Context {
  machine::Device& device;
  collectives::Communicator& tp;
  machine::Dtype dtype = machine::Dtype::float32;

  machine::Stream& stream() const { return device.stream(); }
  machine::Kernels& kernels() const { return device.stream().kernels(); }
  machine::Dtype accumulator() const {
    return dtype == machine::Dtype::float64 ? machine::Dtype::float64 : machine::Dtype::float32;
  }
  machine::Tensor tensor(machine::Shape shape, machine::Category category) const {
    return machine::Tensor(device, dtype, shape, category);
  }
  // One value a row: means, maxima, losses.
  machine::Tensor row_values(std::int64_t rows, machine::Category category) const {
    return machine::Tensor(device, accumulator(), {rows}, category);
  }
};

}  // namespace layers
