#include "suite/expectation/measured_cluster.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "suite/expectation/cluster_drawing.h"
#include "suite/expectation/least_squares.h"
#include "suite/predict/collective_time.h"
#include "suite/predict/kernel_time.h"

namespace suite {
namespace {

using harness::Record;
using predict::Cluster;

Record timed(std::string unit, std::vector<std::pair<std::string, std::string>> axes,
             double seconds) {
  Record record;
  record.unit = std::move(unit);
  record.axes = std::move(axes);
  record.verdict = harness::Ruling::pass;
  record.seconds = seconds;
  return record;
}

// Returns the records of a machine that is exactly as this cluster says.
harness::RunFile run_of(const Cluster& cluster, int ranks) {
  harness::RunFile run;
  const std::string all = std::to_string(ranks);
  for (const char* dtype : {"float", "bfloat16"})
    for (const int wide : {1024, 4096, 8192})
      for (const int deep : {256, 1024, 4096}) {
        const auto type = dtype[0] == 'f' ? machine::Dtype::float32 : machine::Dtype::bfloat16;
        const predict::Gemm gemm{static_cast<double>(wide), static_cast<double>(wide),
                                 static_cast<double>(deep)};
        run.records.push_back(timed(
            "gemm",
            {{"dtype", dtype}, {"ranks", all}, {"shape", fmt::format("{0}x{0}x{1}", wide, deep)}},
            gemm_s(cluster.gpu, gemm, type)));
      }
  run.records.push_back(
      timed("memory_bandwidth", {{"kernel", "copy"}, {"ranks", "2"}, {"bytes", "67108864"}}, 1e-3));
  run.records.back().counters["memory_GBps"] =
      cluster.gpu.bandwidth * cluster.gpu.bandwidth_fraction / 1e9;
  const auto collectives = [&](const char* transport, int group) {
    for (const machine::Operation operation :
         {machine::Operation::all_reduce, machine::Operation::all_gather})
      for (double bytes = 1024; bytes < 1e9; bytes *= 16) {
        run.records.push_back(timed(
            std::string(machine::name(operation)),
            {{"algorithm", "library"}, {"transport", transport}, {"ranks", std::to_string(group)}},
            collective_s(cluster, operation, spread(cluster, group, 1), bytes)));
        run.records.back().counters["bytes"] = bytes;
      }
  };
  collectives("nccl", cluster.gpus_per_node);
  if (ranks > cluster.gpus_per_node) collectives("nccl", ranks);
  Record matrix = timed("link_matrix", {{"ranks", all}}, 1);
  for (int rank = 0; rank < ranks; ++rank)
    matrix.link_matrix.hosts.push_back("host" + std::to_string(rank / cluster.gpus_per_node));
  matrix.link_matrix.bandwidth_GBps.assign(static_cast<std::size_t>(ranks * ranks), 7);
  matrix.link_matrix.latency_us.assign(static_cast<std::size_t>(ranks * ranks), 9);
  run.records.push_back(matrix);
  return run;
}

// A value of the file. NaN: none.
double value(const Cluster& cluster, std::string_view key) {
  for (const predict::ClusterValue& one : predict::values(cluster))
    if (one.key == key) return std::stod(one.value);
  return std::nan("");
}
bool is_measured(const MeasuredCluster& measured, std::string_view key) {
  for (const MeasuredCluster::Value& one : measured.values)
    if (one.key == key) return one.measured;
  ADD_FAILURE() << key;
  return false;
}

// Another cluster than the measured one gives the values without a record.
TEST(MeasuredCluster, FindsTheConstantsOfTheMachineThatWasMeasured) {
  const Cluster truth = predict::read_cluster("dgx_a100"), like = predict::read_cluster("dgx_h100");
  Cluster start = like;
  start.gpu.multiprocessors = truth.gpu.multiprocessors;
  start.gpu.float32 = truth.gpu.float32;
  const MeasuredCluster measured =
      measure_cluster({run_of(truth, 16)}, {"cuda:0: NVIDIA", 2e12}, start);
  const Cluster& found = measured.cluster;
  EXPECT_EQ(found.gpus_per_node, 8);
  EXPECT_NEAR(found.gpu.half * found.gpu.gemm_fraction, truth.gpu.half * truth.gpu.gemm_fraction,
              0.03 * truth.gpu.half * truth.gpu.gemm_fraction);
  EXPECT_NEAR(found.gpu.gemm_depth, truth.gpu.gemm_depth, 0.25 * truth.gpu.gemm_depth);
  EXPECT_NEAR(found.gpu.bandwidth * found.gpu.bandwidth_fraction,
              truth.gpu.bandwidth * truth.gpu.bandwidth_fraction, 1e6);
  EXPECT_NEAR(found.node.rate(), truth.node.rate(), 1e-3 * truth.node.rate());
  EXPECT_NEAR(found.node.latency_s, truth.node.latency_s, 1e-3 * truth.node.latency_s);
  EXPECT_NEAR(found.network.rate(), truth.network.rate(), 1e-3 * truth.network.rate());
  EXPECT_NEAR(found.network.latency_s, truth.network.latency_s, 1e-3 * truth.network.latency_s);
  // A GPU keeps the specification of its links, and gets the measured fraction.
  EXPECT_EQ(found.node.bandwidth, like.node.bandwidth);
  EXPECT_TRUE(is_measured(measured, "node.fraction"));
  EXPECT_FALSE(is_measured(measured, "node.bandwidth_gb_s"));
  EXPECT_FALSE(is_measured(measured, "nvme.read_gb_s"));
  EXPECT_EQ(found.nvme_read, like.nvme_read);
}

// A product that waits for memory does not show the rate of products.
TEST(MeasuredCluster, LeavesOutProductsThatMemoryLimits) {
  const Cluster truth = predict::read_cluster("dgx_a100");
  harness::RunFile run = run_of(truth, 8);
  const double rate = truth.gpu.bandwidth * truth.gpu.bandwidth_fraction;
  for (const int deep : {1024, 2048, 4096})  // at 60 % of the bandwidth
    run.records.push_back(
        timed("gemm",
              {{"dtype", "bfloat16"}, {"ranks", "8"}, {"shape", fmt::format("16x65536x{}", deep)}},
              2.0 * 65536 * (deep + 16) / rate / 0.6));
  const predict::Gpu found = measure_cluster({run}, {"cuda:0: NVIDIA", {}}, truth).cluster.gpu;
  EXPECT_NEAR(found.half * found.gemm_fraction, truth.gpu.half * truth.gpu.gemm_fraction,
              0.03 * truth.gpu.half * truth.gpu.gemm_fraction);
}

TEST(MeasuredCluster, OneNodeDoesNotMeasureTheNetwork) {
  const Cluster like = predict::read_cluster("dgx_a100");
  const MeasuredCluster measured = measure_cluster({run_of(like, 8)}, {"cuda:0: NVIDIA", {}}, like);
  EXPECT_FALSE(is_measured(measured, "network.latency_us"));
  EXPECT_FALSE(is_measured(measured, "host.memory_gb"));
  EXPECT_NE(text(measured).find("missing: all_reduce or link_matrix between nodes (network.*)"),
            std::string::npos)
      << text(measured);
}

TEST(MeasuredCluster, PairsOfTheLinkMatrixReplaceMissingCollectives) {
  const Cluster like = predict::read_cluster("two_cores");
  harness::RunFile run = run_of(like, 4);
  std::erase_if(run.records, [](const Record& record) {
    return record.unit == "all_reduce" || record.unit == "all_gather";
  });
  const MeasuredCluster measured = measure_cluster({run}, {"host: a processor", {}}, like);
  EXPECT_NEAR(value(measured.cluster, "node.bandwidth_gb_s"), 7, 1e-9);
  EXPECT_NEAR(value(measured.cluster, "node.fraction"), 1, 1e-9);
  EXPECT_NEAR(value(measured.cluster, "node.latency_us"), 9, 1e-9);
  EXPECT_NEAR(measured.cluster.network.rate(), 7e9 / measured.cluster.network.oversubscription, 1);
}

// Ranks that share a core or a GPU, failed cases, and cases without a time show no speed.
TEST(MeasuredCluster, LeavesOutRecordsThatShowNoSpeed) {
  const Cluster like = predict::read_cluster("two_cores");
  for (const auto spoil : {+[](Record& record) { record.shares_cores = true; },
                           +[](Record& record) { record.oversubscribed = true; },
                           +[](Record& record) { record.verdict = harness::Ruling::fail; },
                           +[](Record& record) { record.seconds = 0; }}) {
    harness::RunFile run = run_of(like, 2);
    std::ranges::for_each(run.records, spoil);
    const MeasuredCluster measured = measure_cluster({run}, {"host: a processor", {}}, like);
    for (const MeasuredCluster::Value& one : measured.values) EXPECT_FALSE(one.measured) << one.key;
    EXPECT_GE(measured.missing.size(), 4U);
  }
}

TEST(LeastSquares, FindsBothFactorsAndKeepsThemAboveZero) {
  std::vector<TimedCost> times;
  for (const double size : {1.0, 10.0, 1e3, 1e6})
    times.push_back({3, size, 3 * 2e-6 + size * 5e-9});
  TwoFactors found = fit_two(times);
  EXPECT_NEAR(found.first, 2e-6, 1e-12);
  EXPECT_NEAR(found.second, 5e-9, 1e-15);
  EXPECT_LT(mean_error(times, found), 1e-6);
  for (TimedCost& one : times) one.seconds = one.b * 5e-9 * (one.b > 1e4 ? 1.1 : 1);
  found = fit_two(times);
  EXPECT_GE(found.first, 0);
  EXPECT_GT(found.second, 0);
}

TEST(ClusterDrawing, FitsAHundredColumnsAndShowsEachLevel) {
  for (const std::string& name : predict::cluster_names()) {
    const std::string text = drawing(predict::read_cluster(name));
    for (std::size_t at = text.find("\n\n"); at < text.size();) {  // the source may be longer
      const std::size_t end = text.find('\n', at);
      EXPECT_LE(end - at, 100U) << text.substr(at, end - at);
      at = end + 1;
    }
    for (const char* part : {"host: ", "GPU", "TFLOP/s", "NIC", "bfloat16", "all-reduce"})
      EXPECT_NE(text.find(part), std::string::npos) << name << ": " << part;
  }
  const std::string a100 = drawing(predict::read_cluster("dgx_a100"));
  EXPECT_NE(a100.find("8 adapters of 25 GB/s"), std::string::npos) << a100;
}

}  // namespace
}  // namespace suite
