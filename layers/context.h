#pragma once
// What every layer of a rank works with: its device, its tensor-parallel group, the type its values
// have, and how activations are held. Sums and statistics are kept in accumulator(): float, or
// double under double.
//
//   Context context{world.device(), tp, Dtype::bfloat16};
//   Tensor y = context.tensor({tokens, hidden}, Category::activations);
//
// With sequence_parallel (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2) a rank holds,
// between the tensor-parallel regions, tokens/tp consecutive rows of the tokens: "its own".

#include "collectives/communicator/communicator.h"
#include "collectives/placement.h"
#include "machine/device/kernels.h"
#include "machine/device/tensor.h"

namespace layers {

struct Context {
  machine::Device& device;
  collectives::Communicator& tp;
  machine::Dtype dtype = machine::Dtype::float32;
  bool sequence_parallel = false;         // needs tokens that tp divides
  bool recompute_core_attention = false;  // backward makes the probabilities again (same paper, 5)
  bool flash_attention = false;           // blockwise: there are no probabilities (attention.h)

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

  // Rows that this rank holds between the regions, of those that all do together.
  std::int64_t own_rows(std::int64_t rows) const {
    return sequence_parallel ? rows / tp.size() : rows;
  }
  std::int64_t all_rows(std::int64_t own) const {
    return sequence_parallel ? own * tp.size() : own;
  }
  std::int64_t first_row(std::int64_t own) const { return sequence_parallel ? own * tp.rank() : 0; }
  // Of a parameter that works between the regions, on each rank's own rows.
  collectives::Placement between_regions() const {
    return {.gradient_partial_over_tp = sequence_parallel};
  }
};

}  // namespace layers
