#include "suite/predict/scaling_figures.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "harness/json/json.h"

namespace suite::predict {
namespace {

class Figures : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    all = scaling_figures(read_cluster("dgx_a100"), find_software("megatron_core"));
  }
  static const ScalingFigure& figure(std::string_view name) {
    return *std::ranges::find(all, name, &ScalingFigure::name);
  }
  // Returns the value of a line at x.
  static double at(std::string_view name, std::string_view line_name, double x) {
    const auto& lines = figure(name).lines;
    const auto line = std::ranges::find(lines, line_name, &ScalingFigure::Line::name);
    return line->y.at(static_cast<std::size_t>(std::ranges::find(line->x, x) - line->x.begin()));
  }
  static std::vector<ScalingFigure> all;
};
std::vector<ScalingFigure> Figures::all;

TEST_F(Figures, EachHasLinesOfEqualLengthAndAnotherName) {
  std::set<std::string> names;
  for (const ScalingFigure& one : all) {
    EXPECT_TRUE(names.insert(one.name).second) << one.name;
    EXPECT_FALSE(one.lines.empty()) << one.name;
    for (const ScalingFigure::Line& line : one.lines) {
      EXPECT_EQ(line.x.size(), line.y.size()) << one.name;
      EXPECT_GE(line.x.size(), 6U) << one.name;
      for (const double y : line.y) EXPECT_GE(y, 0) << one.name << " " << line.name;
    }
  }
  const auto written = harness::Json::parse(json(all, read_cluster("dgx_a100")));
  EXPECT_EQ(written["figures"].size(), all.size());
}

// arXiv:1910.02054, figure 1 and table 1.
TEST_F(Figures, MemoryOfZeroIsThatOfThePaper) {
  EXPECT_NEAR(at("zero_memory_stage_1", "7.5e9 parameters", 64), 31.4, 0.05);
  EXPECT_NEAR(at("zero_memory_stage_2", "7.5e9 parameters", 64), 16.6, 0.05);
  EXPECT_NEAR(at("zero_memory_stage_3", "7.5e9 parameters", 64), 1.88, 0.01);
  EXPECT_NEAR(at("zero_memory_stage_3", "1000e9 parameters", 1024), 15.6, 0.05);
  EXPECT_NEAR(at("zero_memory_stage_1", "7.5e9 parameters", 1), 120, 1e-6);
}

TEST_F(Figures, ScalingIsBelowLinearAndWeakIsAboveStrong) {
  for (double gpus = 128; gpus <= 16384; gpus *= 2)
    for (const char* name : {"strong_scaling", "weak_scaling"})
      EXPECT_LT(at(name, "predicted", gpus), 1.001 * at(name, "linear", gpus)) << name << gpus;
  EXPECT_NEAR(at("strong_scaling", "predicted", 4096), at("weak_scaling", "predicted", 4096), 1);
  EXPECT_GT(at("weak_scaling", "predicted", 16384), at("strong_scaling", "predicted", 16384));
  EXPECT_LT(at("throughput_model", "predicted", 256), 256);
  EXPECT_NEAR(at("throughput_model", "ring", 256), 256 / (1 + 0.1 * 2 * 255 / 256), 1e-6);
}

TEST_F(Figures, CommunicationFollowsTheDegrees) {
  EXPECT_EQ(at("tp_communication", "time", 1), 0);
  // TP 16 leaves the node of 8.
  EXPECT_GT(at("tp_communication", "time", 16), 1.2 * at("tp_communication", "time", 8));
  EXPECT_GT(at("tp_bytes", "sent", 8), at("tp_bytes", "sent", 2));
  EXPECT_EQ(at("pp_bubble", "simulated", 1), 0);
  EXPECT_NEAR(at("pp_bubble", "simulated", 8), at("pp_bubble", "(p - 1) / m", 8), 2);
  EXPECT_EQ(at("dp_overhead", "megatron_2021, 2 sequences a GPU", 1), 0);
  // More computing hides or outweighs the same reduction.
  for (double gpus = 2; gpus <= 256; gpus *= 2)
    EXPECT_LT(at("dp_overhead", "megatron_2021, 16 sequences a GPU", gpus),
              at("dp_overhead", "megatron_2021, 2 sequences a GPU", gpus));
}

TEST_F(Figures, SavingsAreRelativeToAStar) {
  for (const double gpus : {2.0, 8.0}) {
    const double ring = at("savings", "ring", gpus);
    // 2 (N - 1) / N over 2 (N - 1), but for latency.
    EXPECT_NEAR(ring, 1 / gpus, 0.02 / gpus) << gpus;
  }
  EXPECT_LT(at("savings", "by topology", 64), at("savings", "ring", 64) / 4);
  EXPECT_NEAR(at("savings", "ring, 8 bits", 8) / at("savings", "ring", 8), 0.25, 0.02);
  // Backward takes 4 x 2^28 parameters x 4096 tokens / 218e12 FLOP/s = 20 ms, more than 2 GPUs
  // need: only the last 25 MB are not hidden.
  const auto overlapped = [](double gpus) {
    return at("savings", "by topology, overlapped", gpus);
  };
  EXPECT_NEAR(overlapped(2) / at("savings", "by topology", 2), 25e6 / (1 << 30), 1e-9);
  for (double gpus = 2; gpus <= 256; gpus *= 2)
    EXPECT_LT(overlapped(gpus), at("savings", "by topology", gpus)) << gpus;
  // Top-k's volume grows with the group: N = 10 is where a ring sends as much.
  EXPECT_LT(at("savings", "top-k 0.1", 8), at("savings", "ring", 8));
  EXPECT_GT(at("savings", "top-k 0.1", 16), at("savings", "ring", 16));
}

// On a network of a 64th, backward hides as many seconds of a long reduction as it takes.
TEST(SlowNetwork, BackwardHidesItsOwnTime) {
  Cluster cluster = read_cluster("dgx_a100");
  cluster.network.bandwidth /= 64;
  const auto figures = scaling_figures(cluster, find_software("megatron_core"));
  const auto savings = std::ranges::find(figures, "savings", &ScalingFigure::name);
  const auto line = [&](std::string_view name) {
    return std::ranges::find(savings->lines, name, &ScalingFigure::Line::name)->y;
  };
  const double rate = cluster.network.rate(), bytes = 1 << 30;
  const double star_s = 2 * (cluster.network.latency_s + 15 * bytes / rate);
  const double backward_s = std::exp2(30) * 4096 / (312e12 * cluster.gpu.gemm_fraction);
  constexpr std::size_t of_16_gpus = 3;  // 2, 4, 8, 16
  EXPECT_NEAR(line("by topology")[of_16_gpus] - line("by topology, overlapped")[of_16_gpus],
              backward_s / star_s, 1e-3 * backward_s / star_s);
}

}  // namespace
}  // namespace suite::predict
