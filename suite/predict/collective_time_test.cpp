#include "suite/predict/collective_time.h"

#include <gtest/gtest.h>

#include <tuple>

namespace suite::predict {
namespace {

using machine::Operation;

const Connection link{.latency_s = 5e-6, .rate = 20e9};

TEST(CollectiveTime, SimulatedPlansOfRingsTakeTheClosedForm) {
  for (const auto& [operation, algorithm, steps] : {std::tuple{Operation::all_reduce, "ring", 2},
                                                    {Operation::all_gather, "ring", 1},
                                                    {Operation::reduce_scatter, "ring", 1}})
    for (const int n : {2, 3, 5, 8, 16}) {
      const double bytes = 1e9;
      const double closed = steps * (n - 1) * (link.latency_s + bytes / n / link.rate);
      EXPECT_NEAR(
          plan_s(collectives::find_algorithm(operation, algorithm), {.ranks = n}, bytes, link),
          closed, 1e-12 + 1e-9 * closed)
          << algorithm << " " << n;
    }
}

TEST(CollectiveTime, ARingWithinANodeTakesTheClosedForm) {
  Cluster cluster = read_cluster("dgx_a100");
  cluster.node.latency_s = 0;
  for (const int n : {2, 4, 8}) {
    const double bytes = 3e8;
    const double ring = 2.0 * (n - 1) / n * bytes / cluster.node.rate();
    EXPECT_NEAR(collective_s(cluster, Operation::all_reduce, spread(cluster, n, 1), bytes), ring,
                1e-9 * ring);
  }
}

TEST(CollectiveTime, SpreadFollowsTheStrideOfTheGroup) {
  const Cluster cluster = read_cluster("dgx_a100");
  EXPECT_EQ(spread(cluster, 8, 1).in_node, 8);
  EXPECT_EQ(spread(cluster, 32, 1).in_node, 8);
  EXPECT_EQ(spread(cluster, 32, 4).in_node, 2);
  EXPECT_EQ(spread(cluster, 32, 8).in_node, 1);
  EXPECT_FALSE(spread(cluster, 2, 4).leaves_node());
  EXPECT_TRUE(spread(cluster, 2, 8).leaves_node());
}

// Ranks of other numbers than powers of two have unequal work in trees and halving.
TEST(CollectiveTime, IsNeverBelowTheBandwidthBound) {
  const Cluster cluster = read_cluster("dgx_a100");
  for (const Operation operation : {Operation::all_gather, Operation::reduce_scatter})
    for (const int n : {2, 3, 6, 12, 24, 384, 640}) {
      const Spread group = spread(cluster, n, 8);
      const double bound = (n - 1.0) / n * 1e9 / connection(cluster, group).rate;
      EXPECT_GE(collective_s(cluster, operation, group, 1e9), bound * (1 - 1e-9)) << n;
    }
}

}  // namespace
}  // namespace suite::predict
