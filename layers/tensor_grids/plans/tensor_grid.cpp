#include "layers/tensor_grids/plans/tensor_grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace layers {
namespace {

// Returns the n of n^power = ranks, or 0.
int root_of(int ranks, int power) {
  for (int n = 1; n <= ranks; ++n) {
    int product = 1;
    for (int i = 0; i < power; ++i) product *= n;
    if (product >= ranks) return product == ranks ? n : 0;
  }
  return 0;
}

// Block `index` of `count` equal parts.
struct Part {
  std::int64_t index = 0, count = 1;
};
GridBlock block_of(std::int64_t rows, Part of_rows, std::int64_t cols, Part of_cols) {
  const std::int64_t height = rows / of_rows.count, width = cols / of_cols.count;
  return {of_rows.index * height, of_cols.index * width, height, width};
}

// Returns the place with j and k exchanged for the second layer of a pair. X of 3d is split by (i,
// k | j) and Y by (i, j | k), so the exchange makes Y of the first layer the X of the second.
GridPlace turned(const TensorGrid& grid, int rank, PairPlace layer) {
  GridPlace at = grid.place(rank);
  if (grid.mode == TensorParallelMode::three_d && layer == PairPlace::second) std::swap(at.j, at.k);
  return at;
}

}  // namespace

std::string_view name(TensorParallelMode mode) {
  return tensor_parallel_modes[static_cast<std::size_t>(mode)];
}

TensorParallelMode tensor_parallel_mode(std::string_view name) {
  const auto* const found = std::ranges::find(tensor_parallel_modes, name);
  if (found == tensor_parallel_modes.end())
    throw std::invalid_argument(
        fmt::format("tensor-parallel-mode is '{}'; expected 1d, 2d, 2.5d or 3d", name));
  return static_cast<TensorParallelMode>(found - tensor_parallel_modes.begin());
}

std::string_view group_name(GridAxis axis) {
  constexpr std::string_view names[] = {"tp_column", "tp_row", "tp_depth"};
  return names[static_cast<std::size_t>(axis)];
}

std::vector<int> TensorGrid::members(int of, GridAxis axis) const {
  std::vector<int> ranks;
  for (int index = 0; index < size(axis); ++index) {
    GridPlace at = place(of);
    (axis == GridAxis::column ? at.i : axis == GridAxis::row ? at.j : at.k) = index;
    ranks.push_back(rank(at));
  }
  return ranks;
}

TensorGrid tensor_grid(TensorParallelMode mode, int ranks, int depth) {
  const auto reject = [&](std::string_view rule) {
    throw std::invalid_argument(
        fmt::format("tensor-parallel-mode {} requires {} (got {})", name(mode), rule, ranks));
  };
  if (depth < 1)
    throw std::invalid_argument(
        fmt::format("tensor-parallel-depth is {}; expected at least 1", depth));
  if (depth > 1 && mode != TensorParallelMode::two_and_a_half_d)
    throw std::invalid_argument(fmt::format(
        "tensor-parallel-depth {} requires tensor-parallel-mode 2.5d (got {})", depth, name(mode)));
  switch (mode) {
    case TensorParallelMode::one_d:
      return {mode, 1, ranks, 1};
    case TensorParallelMode::two_d: {
      const int q = root_of(ranks, 2);
      if (q == 0) reject("a square number of ranks");
      return {mode, q, q, 1};
    }
    case TensorParallelMode::two_and_a_half_d: {
      const int q = ranks % depth == 0 ? root_of(ranks / depth, 2) : 0;
      if (q == 0) reject(fmt::format("tensor-parallel-depth {} times a square of ranks", depth));
      return {mode, q, q, depth};
    }
    case TensorParallelMode::three_d:
      break;
  }
  const int l = root_of(ranks, 3);
  if (l == 0) reject("a cubic number of ranks");
  return {mode, l, l, l};
}

GridBlock input_block(const TensorGrid& grid, int rank, PairPlace layer, const GridSizes& sizes) {
  const GridPlace at = turned(grid, rank, layer);
  const std::int64_t q = grid.columns, d = grid.depth;
  switch (grid.mode) {
    case TensorParallelMode::one_d:
      return block_of(sizes.tokens, {}, sizes.in,
                      layer == PairPlace::first ? Part{} : Part{at.j, q});
    case TensorParallelMode::two_d:
    case TensorParallelMode::two_and_a_half_d:
      return block_of(sizes.tokens, {at.i + at.k * q, d * q}, sizes.in, {at.j, q});
    case TensorParallelMode::three_d:
      break;
  }
  return block_of(sizes.tokens, {at.i * q + at.k, q * q}, sizes.in, {at.j, q});
}

GridBlock weight_block(const TensorGrid& grid, int rank, PairPlace layer, const GridSizes& sizes) {
  const GridPlace at = turned(grid, rank, layer);
  const std::int64_t q = grid.columns;
  switch (grid.mode) {
    case TensorParallelMode::one_d:
      return layer == PairPlace::first ? block_of(sizes.in, {}, sizes.out, {at.j, q})
                                       : block_of(sizes.in, {at.j, q}, sizes.out, {});
    case TensorParallelMode::two_d:
    case TensorParallelMode::two_and_a_half_d:
      return block_of(sizes.in, {at.i, q}, sizes.out, {at.j, q});
    case TensorParallelMode::three_d:
      break;
  }
  return block_of(sizes.in, {at.j * q + at.i, q * q}, sizes.out, {at.k, q});
}

GridBlock output_block(const TensorGrid& grid, int rank, PairPlace layer, const GridSizes& sizes) {
  // The output has the place of an input of the other layer of a pair. 2d and 2.5d have one place.
  return input_block(grid, rank, layer == PairPlace::first ? PairPlace::second : PairPlace::first,
                     {sizes.tokens, sizes.out, sizes.in});
}

GridBlock bias_block(const TensorGrid& grid, int rank, PairPlace layer, const GridSizes& sizes) {
  const GridPlace at = turned(grid, rank, layer);
  const std::int64_t q = grid.columns;
  switch (grid.mode) {
    case TensorParallelMode::one_d:
      return block_of(1, {}, sizes.out, layer == PairPlace::first ? Part{at.j, q} : Part{});
    case TensorParallelMode::two_d:
    case TensorParallelMode::two_and_a_half_d:
      return at.i == 0 ? block_of(1, {}, sizes.out, {at.j, q}) : GridBlock();
    case TensorParallelMode::three_d:
      break;
  }
  return at.j == at.k ? block_of(1, {}, sizes.out, {at.k * q + at.i, q * q}) : GridBlock();
}

std::string why_not_divided(const TensorGrid& grid, PairPlace layer, const GridSizes& sizes,
                            const GridSizeNames& names) {
  const std::int64_t q = grid.columns;
  std::int64_t of_tokens = 1, of_in = q, of_out = q;
  switch (grid.mode) {
    case TensorParallelMode::one_d:
      (layer == PairPlace::first ? of_in : of_out) = 1;
      break;
    case TensorParallelMode::two_d:
    case TensorParallelMode::two_and_a_half_d:
      of_tokens = q * grid.depth;
      break;
    case TensorParallelMode::three_d:
      of_tokens = of_in = of_out = q * q;
      break;
  }
  for (const auto& [what, value, by] : {std::tuple(names.tokens, sizes.tokens, of_tokens),
                                        {names.in, sizes.in, of_in},
                                        {names.out, sizes.out, of_out}})
    if (value % by != 0)
      return fmt::format(
          "{} is {}; expected a multiple of {} in the grid {} x {} x {} (example: {})", what, value,
          by, grid.rows, grid.columns, grid.depth,
          std::max<std::int64_t>(1, (value + by / 2) / by) * by);
  return {};
}

}  // namespace layers
