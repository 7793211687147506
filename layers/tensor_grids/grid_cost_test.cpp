// The costs of all ranks together are the totals of the papers.

#include "layers/tensor_grids/grid_cost.h"

#include <gtest/gtest.h>

namespace layers {
namespace {

using enum TensorParallelMode;

constexpr std::int64_t M = 648, K = 144, F = 288;

// Returns the values that all ranks receive in a pass.
double received(GridLinearCase c, int ranks, GridPass GridLinearCost::*pass) {
  const TensorGrid grid = tensor_grid(c.mode, ranks, c.depth);
  c.q = grid.columns;
  c.tokens = M;
  c.in = K;
  c.out = F;
  c.bias = false;
  double bytes = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    c.place = grid.place(rank);
    const GridPass cost = grid_linear_cost(c).*pass;
    collectives::CallsCost calls;
    for (const collectives::CollectiveCalls& one : cost.calls) {
      const GridAxis axis = one.group == "tp_row"      ? GridAxis::row
                            : one.group == "tp_column" ? GridAxis::column
                                                       : GridAxis::depth;
      EXPECT_EQ(one.ranks, grid.size(axis));
      calls.add(one, "direct", c.place.along(axis));
    }
    GridMessages all = calls.traffic();
    for (const auto& [group, labels] : cost.messages)
      for (const auto& [label, traffic] : labels) all[group][label] += traffic;
    for (const auto& [group, labels] : all)
      for (const auto& [label, traffic] : labels)
        bytes += static_cast<double>(traffic.bytes_received);
  }
  return bytes / 4;
}

constexpr auto forward = &GridLinearCost::forward, input = &GridLinearCost::backward_input,
               weights = &GridLinearCost::backward_weights;
constexpr double MK = M * K, KF = K * F, MF = M * F;

TEST(GridCost, OneDimensionAllReducesOnce) {
  EXPECT_EQ(received({.mode = one_d}, 4, forward), 0);
  EXPECT_EQ(received({.mode = one_d}, 4, input), 4 * 2 * MK * 3 / 4);
  EXPECT_EQ(received({.mode = one_d, .layer = PairPlace::second}, 4, forward), 4 * 2 * MF * 3 / 4);
  EXPECT_EQ(received({.mode = one_d, .layer = PairPlace::second}, 4, input), 0);
}

TEST(GridCost, SummaBroadcastsOrReducesBothOperands) {
  for (const auto pass : {forward, input, weights})
    for (const int q : {2, 3})
      EXPECT_EQ(received({.mode = two_d}, q * q, pass), (q - 1) * (MK + KF));
}

// In addition to SUMMA's bytes, a block moves once on the ranks that skew: q - 1 of q rows.
TEST(GridCost, CannonSkewsAndShifts) {
  for (const auto pass : {forward, input, weights})
    for (const int q : {2, 3})
      EXPECT_EQ(received({.mode = two_d, .cannon = true}, q * q, pass),
                (q - 1) * (MK + KF) + (MK + KF) * (q - 1) / q);
}

TEST(GridCost, TesseractSumsGradientsOverTheDepth) {
  for (const int d : {1, 2, 3})
    for (const int q : {2, 3}) {
      const GridLinearCase c{.mode = two_and_a_half_d, .depth = d};
      EXPECT_EQ(received(c, q * q * d, forward), (q - 1) * (MK + d * KF));
      EXPECT_EQ(received(c, q * q * d, input), (q - 1) * (MK + d * KF));
      EXPECT_EQ(received(c, q * q * d, weights), (q - 1) * (MK + d * KF) + 2 * KF * (d - 1));
    }
}

TEST(GridCost, ThreeDimensionsGatherOperandsAndScatterSums) {
  for (const int l : {2, 3})
    for (const PairPlace layer : {PairPlace::first, PairPlace::second}) {
      const GridLinearCase c{.mode = three_d, .layer = layer};
      const int p = l * l * l;
      EXPECT_EQ(received(c, p, forward), (l - 1) * (MK + KF + MF));
      EXPECT_EQ(received(c, p, input), (l - 1) * (MK + KF + MF));
      EXPECT_EQ(received(c, p, weights), (l - 1) * (MK + KF));
    }
}

}  // namespace
}  // namespace layers
