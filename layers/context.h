#pragma once
// The context of a rank's layers: the device, the tensor-parallel group, the type of the values,
// and how activations are stored. Sums and statistics are kept in accumulator(): float, or double
// for double values.
//
//   Context context{world.device(), tp, Dtype::bfloat16};
//   Tensor y = context.tensor({tokens, hidden}, Category::activations);
//
// With sequence_parallel (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2) a rank holds
// tokens/tp consecutive rows between the tensor-parallel regions: its own rows. With context
// parallelism (cp) `tokens` are those of the rank's parts of the sequences (own_rows.h).

#include "collectives/communicator/communicator.h"
#include "collectives/placement.h"
#include "layers/context_parallel/context_parallel.h"
#include "layers/fp8/options.h"
#include "layers/tp_comm_overlap.h"
#include "machine/device/kernels.h"
#include "machine/device/tensor.h"

namespace layers {

using collectives::Parameter, collectives::Placement, collectives::Role, collectives::Spread;
using machine::Category, machine::Dtype, machine::Matrix, machine::Shape, machine::Tensor;

struct Context {
  machine::Device& device;
  collectives::Communicator& tp;
  Dtype dtype = Dtype::float32;
  bool sequence_parallel = false;         // tp must divide the tokens
  bool recompute_core_attention = false;  // backward recomputes probabilities (paper, section 5)
  bool flash_attention = false;           // blockwise, without probabilities (attention.h)
  bool fused_epilogues = false;  // bias and GELU inside the product (machine/device/gemm.h)
  ContextParallel cp{};          // the split of the sequences; by default ranks have whole ones
  TpCommOverlap overlap{};       // communication over tp during products
  Fp8Scheme fp8{};               // products of the linear layers in 8 bits

  machine::Stream& stream() const { return device.stream(); }
  machine::Kernels& kernels() const { return device.stream().kernels(); }
  Dtype accumulator() const { return dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32; }
  Tensor tensor(Shape shape, Category category) const {
    return Tensor(device, dtype, shape, category);
  }
  // One value per row: means, maxima, losses.
  Tensor row_values(std::int64_t rows, Category category) const {
    return Tensor(device, accumulator(), {rows}, category);
  }

  // Returns the number of rows that this rank holds between the regions, from `rows` over all
  // ranks.
  std::int64_t own_rows(std::int64_t rows) const {
    return sequence_parallel ? rows / tp.size() : rows;
  }
  std::int64_t all_rows(std::int64_t own) const {
    return sequence_parallel ? own * tp.size() : own;
  }
  std::int64_t first_row(std::int64_t own) const { return sequence_parallel ? own * tp.rank() : 0; }
  // Returns whether a layer whose kept tensors are in memory of this category computes the
  // gradients of its weights in backward_input: buffers, if backward_weights follows at once.
  bool joins_halves(Category kept) const {
    return tp.size() > 1 && kept == Category::buffers && overlap.joins_halves(sequence_parallel);
  }
  // Returns the placement of a parameter that is applied between the regions, to each rank's own
  // rows.
  Placement between_regions() const { return {.gradient_partial_over_tp = sequence_parallel}; }
};

}  // namespace layers
