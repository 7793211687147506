#include "layers/tensor_grids/plans/grid_plan.h"

#include <fmt/format.h>

#include <stdexcept>

#include "layers/tensor_grids/plans/bian.h"
#include "layers/tensor_grids/plans/cannon.h"
#include "layers/tensor_grids/plans/megatron.h"
#include "layers/tensor_grids/plans/summa.h"
#include "layers/tensor_grids/plans/tesseract.h"

namespace layers {

std::string_view name(GridMethod method) {
  return method == GridMethod::cannon ? "cannon" : "summa";
}

GridMethod grid_method(std::string_view name) {
  for (const GridMethod method : {GridMethod::summa, GridMethod::cannon})
    if (name == layers::name(method)) return method;
  throw std::invalid_argument(
      fmt::format("tensor-parallel-product is '{}'; expected summa or cannon", name));
}

GridPlan grid_plan(const TensorGrid& grid, PairPlace layer, GridProduct product,
                   GridMethod method) {
  if (method == GridMethod::cannon && grid.mode != TensorParallelMode::two_d)
    throw std::invalid_argument(
        fmt::format("tensor-parallel-product cannon requires tensor-parallel-mode 2d (got {})",
                    name(grid.mode)));
  switch (grid.mode) {
    case TensorParallelMode::one_d:
      return megatron(product, layer, grid.columns);
    case TensorParallelMode::two_d:
      return method == GridMethod::cannon ? cannon(product, grid.columns)
                                          : summa(product, grid.columns);
    case TensorParallelMode::two_and_a_half_d:
      return tesseract(product, grid.columns, grid.depth);
    case TensorParallelMode::three_d:
      break;
  }
  return bian(product, layer, grid.columns);
}

}  // namespace layers
