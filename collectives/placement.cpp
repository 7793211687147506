#include "collectives/placement.h"

#include <fmt/format.h>

#include <stdexcept>

namespace collectives {

machine::Shape Parameter::local_shape(const std::string& name, machine::Shape global_shape,
                                      const Placement& placement, int tp) {
  if (const auto& block = placement.block) {
    if (global_shape.rank() == 1) return {block->cols};
    return block->transposed ? machine::Shape{block->cols, block->rows}
                             : machine::Shape{block->rows, block->cols};
  }
  if (placement.tp == Spread::replicated) return global_shape;
  const std::int64_t extent = global_shape[placement.dim];
  if (extent % tp != 0)
    throw std::invalid_argument(
        fmt::format("{} {}: extent {} is not divisible by tensor-model-parallel-size {}", name,
                    global_shape.text(), extent, tp));
  if (global_shape.rank() == 1) return {extent / tp};
  return placement.dim == 0 ? machine::Shape{extent / tp, global_shape[1]}
                            : machine::Shape{global_shape[0], extent / tp};
}

machine::Region Parameter::region(int tp_rank) const {
  const bool vector = global_shape.rank() == 1;
  machine::Region region{0, 0, vector ? global_shape[0] : global_shape[1]};
  if (const auto& block = placement.block) return {block->row, block->col, region.global_cols};
  if (placement.tp == Spread::replicated) return region;
  if (vector || placement.dim == 1)
    region.col = tp_rank * value.shape()[vector ? 0 : 1];
  else
    region.row = tp_rank * value.shape()[0];
  return region;
}

machine::Dtype gradient_dtype(machine::Dtype value) {
  return value == machine::Dtype::float64 ? machine::Dtype::float64 : machine::Dtype::float32;
}

}  // namespace collectives
