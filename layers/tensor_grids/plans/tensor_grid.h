#pragma once
// The ranks of tensor parallelism in 1, 2, 2.5 and 3 dimensions as a grid rows x columns x depth,
// and the block of each matrix that a rank holds. Functions of sizes, without communication.
//
//   const TensorGrid grid = tensor_grid(TensorParallelMode::two_d, 9, 1);   // 3 x 3
//   grid.place(5);                                                          // i 1, j 2, k 0
//   weight_block(grid, 5, PairPlace::first, {tokens, in, out});
//
// The linear layer is Y [M, F] = X [M, K] W [K, F]. M, K and F are tokens, in and out.
//
//   mode  grid       X of rank (i, j, k)        W                       Y
//   1d    1 x p x 1  all          all           all       F/p: j        all         F/p: j
//     second layer   all          K/p: j        K/p: j    all           all         all
//   2d    q x q x 1  M/q: i       K/q: j        K/q: i    F/q: j        M/q: i      F/q: j
//   2.5d  q x q x d  M/dq: i + kq K/q: j        K/q: i    F/q: j        M/dq: i+kq  F/q: j
//   3d    l x l x l  M/l²: il + k K/l: j        K/l²: jl+i F/l: k       M/l²: il+j  F/l: k
//     second layer   j and k are exchanged
//
// (rows on the left, columns on the right). Shoeybi et al. 2019, arXiv:1909.08053; Xu et al. 2021
// (Optimus), arXiv:2104.05343; Wang et al. 2021 (Tesseract), arXiv:2105.14500; Bian et al. 2021,
// arXiv:2105.14450.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace layers {

enum class TensorParallelMode : unsigned char { one_d, two_d, two_and_a_half_d, three_d };
inline constexpr std::array<std::string_view, 4> tensor_parallel_modes{"1d", "2d", "2.5d", "3d"};
std::string_view name(TensorParallelMode mode);
// Throws std::invalid_argument for an unknown name.
TensorParallelMode tensor_parallel_mode(std::string_view name);

// A group of the grid: ranks of a column differ in i, of a row in j, of a depth in k.
enum class GridAxis : unsigned char { column, row, depth };
inline constexpr GridAxis all_grid_axes[] = {GridAxis::column, GridAxis::row, GridAxis::depth};
std::string_view group_name(GridAxis axis);  // "tp_column", "tp_row", "tp_depth"

struct GridPlace {
  int i = 0, j = 0, k = 0;
  int along(GridAxis axis) const {
    return axis == GridAxis::column ? i : axis == GridAxis::row ? j : k;
  }
  bool operator==(const GridPlace&) const = default;
};

struct TensorGrid {
  TensorParallelMode mode = TensorParallelMode::one_d;
  int rows = 1, columns = 1, depth = 1;

  int ranks() const { return rows * columns * depth; }
  int size(GridAxis axis) const {
    return axis == GridAxis::column ? rows : axis == GridAxis::row ? columns : depth;
  }
  // Ranks of a row are neighbours; those of a depth are farthest apart.
  GridPlace place(int rank) const {
    return {rank / columns % rows, rank % columns, rank / (rows * columns)};
  }
  int rank(GridPlace at) const { return (at.k * rows + at.i) * columns + at.j; }
  // Returns the ranks that differ from rank `of` along the axis only, in ascending order.
  std::vector<int> members(int of, GridAxis axis) const;
  bool operator==(const TensorGrid&) const = default;
};

// depth: of 2.5d; otherwise 1. Throws std::invalid_argument if the ranks do not form such a grid.
TensorGrid tensor_grid(TensorParallelMode mode, int ranks, int depth);

// The place in a pair of layers, such as those of an MLP. The output of the first layer is split as
// the input of the second.
enum class PairPlace : unsigned char { first, second };

struct GridSizes {
  std::int64_t tokens = 1, in = 1, out = 1;
};

// Rows [row, row + rows) and columns [col, col + cols) of a whole matrix.
struct GridBlock {
  std::int64_t row = 0, col = 0, rows = 0, cols = 0;
  std::int64_t size() const { return rows * cols; }
  bool operator==(const GridBlock&) const = default;
};

GridBlock input_block(const TensorGrid& grid, int rank, PairPlace layer, const GridSizes& sizes);
GridBlock weight_block(const TensorGrid& grid, int rank, PairPlace layer, const GridSizes& sizes);
GridBlock output_block(const TensorGrid& grid, int rank, PairPlace layer, const GridSizes& sizes);
// The bias [1, out] is stored by row 0 of the grid (2d, 2.5d: Optimus), or in pieces
// F/l² by the diagonal j = k (3d). Empty on other ranks.
GridBlock bias_block(const TensorGrid& grid, int rank, PairPlace layer, const GridSizes& sizes);

// The names of sizes in an error.
struct GridSizeNames {
  std::string_view tokens = "tokens", in = "input_size", out = "output_size";
};
// Returns why the grid cannot split the sizes, with the nearest multiple, or empty.
std::string why_not_divided(const TensorGrid& grid, PairPlace layer, const GridSizes& sizes,
                            const GridSizeNames& names = {});

}  // namespace layers
