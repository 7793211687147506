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
  const std::int64_t extent = global_shape[placement.dim], parts = placement.parts(tp);
  if (extent % parts != 0)
    throw std::invalid_argument(fmt::format(
        "{} {}: extent {} is not divisible by {}-parallel-size {}", name, global_shape.text(),
        extent, placement.is_of_expert() ? "expert-tensor" : "tensor-model", parts));
  if (global_shape.rank() == 1) return {extent / parts};
  return placement.dim == 0 ? machine::Shape{extent / parts, global_shape[1]}
                            : machine::Shape{global_shape[0], extent / parts};
}

machine::Region Parameter::region(int tp_rank) const {
  const bool vector = global_shape.rank() == 1;
  machine::Region region{0, 0, vector ? global_shape[0] : global_shape[1]};
  if (const auto& block = placement.block) return {block->row, block->col, region.global_cols};
  if (placement.tp == Spread::replicated) return region;
  const int part = placement.part(tp_rank);
  if (vector || placement.dim == 1)
    region.col = part * value.shape()[vector ? 0 : 1];
  else
    region.row = part * value.shape()[0];
  return region;
}

machine::Dtype gradient_dtype(machine::Dtype value) {
  return value == machine::Dtype::float64 ? machine::Dtype::float64 : machine::Dtype::float32;
}

}  // namespace collectives
