// Every element of every matrix is stored as the papers say, checked element by element.

#include "layers/tensor_grids/plans/tensor_grid.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <stdexcept>

namespace layers {
namespace {

using enum TensorParallelMode;

std::vector<TensorGrid> grids() {
  return {tensor_grid(one_d, 1, 1),
          tensor_grid(one_d, 3, 1),
          tensor_grid(two_d, 1, 1),
          tensor_grid(two_d, 4, 1),
          tensor_grid(two_d, 9, 1),
          tensor_grid(two_and_a_half_d, 8, 2),
          tensor_grid(two_and_a_half_d, 18, 2),
          tensor_grid(two_and_a_half_d, 12, 3),
          tensor_grid(two_and_a_half_d, 3, 3),
          tensor_grid(three_d, 1, 1),
          tensor_grid(three_d, 8, 1),
          tensor_grid(three_d, 27, 1)};
}

constexpr GridSizes sizes{36, 72, 108};

void each_case(const std::function<void(const TensorGrid&, PairPlace)>& check) {
  for (const TensorGrid& grid : grids())
    for (const PairPlace layer : {PairPlace::first, PairPlace::second}) {
      SCOPED_TRACE(fmt::format("{} {} x {} x {} layer {}", name(grid.mode), grid.rows, grid.columns,
                               grid.depth, layer == PairPlace::first ? 1 : 2));
      ASSERT_EQ(why_not_divided(grid, layer, sizes), "");
      check(grid, layer);
    }
}

// Counts the owners of every element.
std::vector<int> owners(const TensorGrid& grid, std::int64_t rows, std::int64_t cols,
                        const std::function<GridBlock(int)>& block) {
  std::vector<int> count(static_cast<std::size_t>(rows * cols));
  for (int rank = 0; rank < grid.ranks(); ++rank) {
    const GridBlock own = block(rank);
    for (std::int64_t i = own.row; i < own.row + own.rows; ++i)
      for (std::int64_t j = own.col; j < own.col + own.cols; ++j)
        ++count.at(static_cast<std::size_t>(i * cols + j));
  }
  return count;
}
void expect_owners(const std::vector<int>& count, int each) {
  EXPECT_EQ(std::set<int>(count.begin(), count.end()), std::set<int>{each});
}

TEST(TensorGrid, PlacesAreUniqueAndGroupsContainTheRank) {
  each_case([](const TensorGrid& grid, PairPlace) {
    for (int rank = 0; rank < grid.ranks(); ++rank) {
      EXPECT_EQ(grid.rank(grid.place(rank)), rank);
      for (const GridAxis axis : all_grid_axes) {
        const std::vector<int> members = grid.members(rank, axis);
        ASSERT_EQ(members.size(), static_cast<std::size_t>(grid.size(axis)));
        EXPECT_EQ(members.at(static_cast<std::size_t>(grid.place(rank).along(axis))), rank);
        for (const int member : members) EXPECT_EQ(grid.members(member, axis), members);
      }
    }
  });
  // Rank 5 of 2 x 2 x 2 is the second rank of the first row of the second layer.
  const TensorGrid cube = tensor_grid(three_d, 8, 1);
  EXPECT_EQ(cube.place(5), (GridPlace{0, 1, 1}));
  EXPECT_EQ(cube.members(5, GridAxis::row), (std::vector<int>{4, 5}));
  EXPECT_EQ(cube.members(5, GridAxis::column), (std::vector<int>{5, 7}));
  EXPECT_EQ(cube.members(5, GridAxis::depth), (std::vector<int>{1, 5}));
}

TEST(TensorGrid, EveryElementHasTheOwnersOfThePaper) {
  each_case([](const TensorGrid& grid, PairPlace layer) {
    const bool first = layer == PairPlace::first, one = grid.mode == one_d;
    expect_owners(owners(grid, sizes.tokens, sizes.in,
                         [&](int rank) { return input_block(grid, rank, layer, sizes); }),
                  one && first ? grid.ranks() : 1);
    expect_owners(owners(grid, sizes.in, sizes.out,
                         [&](int rank) { return weight_block(grid, rank, layer, sizes); }),
                  grid.mode == two_and_a_half_d ? grid.depth : 1);
    expect_owners(owners(grid, sizes.tokens, sizes.out,
                         [&](int rank) { return output_block(grid, rank, layer, sizes); }),
                  one && !first ? grid.ranks() : 1);
    expect_owners(
        owners(grid, 1, sizes.out, [&](int rank) { return bias_block(grid, rank, layer, sizes); }),
        one && !first                   ? grid.ranks()
        : grid.mode == two_and_a_half_d ? grid.depth
                                        : 1);
  });
}

// Blocks are of one size, which the tables of the papers state as a share of the matrix.
TEST(TensorGrid, BlocksAreTheSharesOfThePapers) {
  each_case([](const TensorGrid& grid, PairPlace layer) {
    const std::int64_t p = grid.ranks(), weights = sizes.in * sizes.out;
    for (int rank = 0; rank < p; ++rank) {
      const GridBlock x = input_block(grid, rank, layer, sizes),
                      w = weight_block(grid, rank, layer, sizes),
                      y = output_block(grid, rank, layer, sizes);
      EXPECT_EQ(w.size(), weights * (grid.mode == two_and_a_half_d ? grid.depth : 1) / p);
      if (grid.mode == one_d) continue;
      EXPECT_EQ(x.size(), sizes.tokens * sizes.in / p);
      EXPECT_EQ(y.size(), sizes.tokens * sizes.out / p);
    }
  });
}

TEST(TensorGrid, OutputOfTheFirstLayerIsInputOfTheSecond) {
  for (const TensorGrid& grid : grids())
    for (int rank = 0; rank < grid.ranks(); ++rank) {
      const GridSizes turned{sizes.tokens, sizes.out, sizes.in};
      EXPECT_EQ(output_block(grid, rank, PairPlace::first, sizes),
                input_block(grid, rank, PairPlace::second, turned));
      EXPECT_EQ(output_block(grid, rank, PairPlace::second, turned),
                input_block(grid, rank, PairPlace::first, sizes));
      EXPECT_EQ(bias_block(grid, rank, PairPlace::first, sizes).size() > 0,
                bias_block(grid, rank, PairPlace::second, sizes).size() > 0);
    }
}

// The drawings of the papers, for one rank each.
TEST(TensorGrid, BlocksOfOneRank) {
  const TensorGrid square = tensor_grid(two_d, 4, 1), deep = tensor_grid(two_and_a_half_d, 8, 2),
                   cube = tensor_grid(three_d, 8, 1);
  // Rank 2 is (1, 0): X_10, W_10.
  EXPECT_EQ(input_block(square, 2, PairPlace::first, sizes), (GridBlock{18, 0, 18, 36}));
  EXPECT_EQ(weight_block(square, 2, PairPlace::first, sizes), (GridBlock{36, 0, 36, 54}));
  EXPECT_EQ(bias_block(square, 2, PairPlace::first, sizes), GridBlock());
  EXPECT_EQ(bias_block(square, 1, PairPlace::first, sizes), (GridBlock{0, 54, 1, 54}));
  // Rank 4 is (0, 0, 1): row block h = i + k q = 2 of 4.
  EXPECT_EQ(input_block(deep, 4, PairPlace::first, sizes), (GridBlock{18, 0, 9, 36}));
  EXPECT_EQ(weight_block(deep, 4, PairPlace::first, sizes), (GridBlock{0, 0, 36, 54}));
  // Rank 6 is (1, 0, 1): piece k = 1 of X_10, piece i = 1 of W_01, piece j = 0 of Y_11.
  EXPECT_EQ(input_block(cube, 6, PairPlace::first, sizes), (GridBlock{27, 0, 9, 36}));
  EXPECT_EQ(weight_block(cube, 6, PairPlace::first, sizes), (GridBlock{18, 54, 18, 54}));
  EXPECT_EQ(output_block(cube, 6, PairPlace::first, sizes), (GridBlock{18, 54, 9, 54}));
  EXPECT_EQ(bias_block(cube, 6, PairPlace::first, sizes), GridBlock());
  EXPECT_EQ(bias_block(cube, 7, PairPlace::first, sizes), (GridBlock{0, 81, 1, 27}));
}

TEST(TensorGrid, RejectsOtherNumbersOfRanks) {
  const auto message = [](TensorParallelMode mode, int ranks, int depth) -> std::string {
    try {
      tensor_grid(mode, ranks, depth);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message(two_d, 8, 1),
            "tensor-parallel-mode 2d requires a square number of ranks (got 8)");
  EXPECT_EQ(message(three_d, 9, 1),
            "tensor-parallel-mode 3d requires a cubic number of ranks (got 9)");
  EXPECT_EQ(message(two_and_a_half_d, 8, 4),
            "tensor-parallel-mode 2.5d requires tensor-parallel-depth 4 times a square of ranks "
            "(got 8)");
  EXPECT_EQ(message(two_d, 8, 2),
            "tensor-parallel-depth 2 requires tensor-parallel-mode 2.5d (got 2d)");
  EXPECT_EQ(message(two_and_a_half_d, 8, 0), "tensor-parallel-depth is 0; expected at least 1");
  EXPECT_THROW(tensor_parallel_mode("4d"), std::invalid_argument);
}

TEST(TensorGrid, NamesTheSizeThatIsNotDivided) {
  EXPECT_EQ(why_not_divided(tensor_grid(two_d, 9, 1), PairPlace::first, {9, 8, 9}),
            "input_size is 8; expected a multiple of 3 in the grid 3 x 3 x 1 (example: 9)");
  EXPECT_EQ(why_not_divided(tensor_grid(two_and_a_half_d, 8, 2), PairPlace::first, {6, 8, 8}),
            "tokens is 6; expected a multiple of 4 in the grid 2 x 2 x 2 (example: 8)");
  EXPECT_EQ(why_not_divided(tensor_grid(three_d, 8, 1), PairPlace::first, {4, 4, 6}),
            "output_size is 6; expected a multiple of 4 in the grid 2 x 2 x 2 (example: 8)");
}

}  // namespace
}  // namespace layers
