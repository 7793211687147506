#include "machine/world/grid.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace machine {
namespace {

TEST(Grid, TensorParallelRanksAreNeighbours) {
  const Grid grid({.tp = 2, .dp = 2, .pp = 2}, 5);
  EXPECT_EQ(grid.coordinate(Axis::tp), 1);
  EXPECT_EQ(grid.coordinate(Axis::dp), 0);
  EXPECT_EQ(grid.coordinate(Axis::pp), 1);
  EXPECT_EQ(grid.group(Axis::tp).members, (std::vector<int>{4, 5}));
  EXPECT_EQ(grid.group(Axis::dp).members, (std::vector<int>{5, 7}));
  EXPECT_EQ(grid.group(Axis::pp).members, (std::vector<int>{1, 5}));
  EXPECT_EQ(grid.group(Axis::pp).index, 1);
}

TEST(Grid, EveryRankHasItsCoordinates) {
  const Degrees degrees{.tp = 2, .cp = 3, .ep = 1, .dp = 2, .pp = 4};
  for (int rank = 0; rank < degrees.ranks(); ++rank) {
    const Grid grid(degrees, rank);
    for (const Axis axis : all_axes) {
      EXPECT_EQ(grid.rank_at(axis, grid.coordinate(axis)), rank);
      const Group group = grid.group(axis);
      EXPECT_EQ(group.members[static_cast<std::size_t>(group.index)], rank);
      for (int i = 0; i < group.size(); ++i) {
        const Grid other(degrees, group.members[static_cast<std::size_t>(i)]);
        EXPECT_EQ(other.coordinate(axis), i);
        EXPECT_EQ(other.group(axis).members, group.members);
      }
    }
  }
}

TEST(Grid, ReplicasAreTheRanksOfContextsAndOfDataParallelism) {
  const Degrees degrees{.tp = 2, .cp = 2, .dp = 2, .pp = 2};
  EXPECT_EQ(Grid(degrees, 3).replica_group().members, (std::vector<int>{1, 3, 5, 7}));
  EXPECT_EQ(Grid(degrees, 12).replica_group().members, (std::vector<int>{8, 10, 12, 14}));
  EXPECT_EQ(Grid(degrees, 12).replica_group().index, 2);
  EXPECT_EQ(Grid({.tp = 2, .dp = 3}, 3).replica_group().members,
            Grid({.tp = 2, .dp = 3}, 3).group(Axis::dp).members);
}

TEST(Grid, OppositeStagesAreEquallyFarFromTheEnds) {
  const Degrees degrees{.tp = 2, .pp = 3};
  EXPECT_EQ(Grid(degrees, 1).opposite_group().members, (std::vector<int>{1, 5}));
  EXPECT_EQ(Grid(degrees, 5).opposite_group().members, (std::vector<int>{1, 5}));
  EXPECT_EQ(Grid(degrees, 5).opposite_group().index, 1);
  EXPECT_EQ(Grid(degrees, 3).opposite_group().members, (std::vector<int>{3}));
  EXPECT_EQ(Grid({.dp = 2, .pp = 4}, 3).opposite_group().members, (std::vector<int>{3, 5}));
}

TEST(Grid, TiedEmbeddingIsSharedByFirstAndLastStage) {
  const Degrees degrees{.tp = 2, .pp = 3};
  EXPECT_EQ(Grid(degrees, 1).embedding_group().members, (std::vector<int>{1, 5}));
  EXPECT_EQ(Grid(degrees, 3).embedding_group().index, -1);
  EXPECT_EQ(Grid(degrees, 5).embedding_group().index, 1);
  EXPECT_EQ(Grid({.tp = 2}, 1).embedding_group().members, (std::vector<int>{1}));
}

TEST(Grid, RejectsARankOutside) {
  EXPECT_THROW(Grid({.tp = 2}, 2), std::invalid_argument);
  EXPECT_THROW(Grid({.tp = 2}, Group{"three", {0, 1, 2}, 0}), std::invalid_argument);
  EXPECT_THROW(Grid({.tp = 0}, 0), std::invalid_argument);
}

// The ranks of a grid need not be the first of the world.
TEST(Grid, AGroupsRanksFormIt) {
  const Group ranks{"some", {9, 4, 7, 1, 3, 8, 6, 2}, 5};
  const Grid grid({.tp = 2, .dp = 2, .pp = 2}, ranks);
  EXPECT_EQ(grid.rank(), 5);
  EXPECT_EQ(grid.group(Axis::tp).members, (std::vector<int>{3, 8}));
  EXPECT_EQ(grid.group(Axis::tp).index, 1);
  EXPECT_EQ(grid.group(Axis::dp).members, (std::vector<int>{8, 2}));
  EXPECT_EQ(grid.replica_group().members, (std::vector<int>{8, 2}));
  EXPECT_EQ(grid.embedding_group().members, (std::vector<int>{4, 8}));
  EXPECT_EQ(grid.opposite_group().members, (std::vector<int>{4, 8}));
  EXPECT_EQ(Grid({.tp = 8}, ranks).embedding_group().members, (std::vector<int>{8}));
  EXPECT_EQ(Grid({.tp = 8}, ranks).opposite_group().members, (std::vector<int>{8}));
  EXPECT_EQ(grid.rank_at(Axis::pp, 0), 1);
}

}  // namespace
}  // namespace machine
