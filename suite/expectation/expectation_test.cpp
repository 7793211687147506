#include "suite/expectation/expectation.h"

#include <gtest/gtest.h>

#include "harness/record/summary.h"
#include "suite/predict/collective_time.h"
#include "suite/training_step/step_sweep.h"

namespace suite {
namespace {

using harness::Record;
using predict::Cluster;

Record record_of(std::string unit, harness::AxisValues axes,
                 std::map<std::string, double> counters = {}) {
  Record record;
  record.unit = std::move(unit);
  record.axes = std::move(axes);
  record.counters = std::move(counters);
  record.verdict = harness::Ruling::pass;
  return record;
}
Record all_reduce(const std::string& algorithm, const std::string& transport, int ranks,
                  double bytes) {
  return record_of("all_reduce",
                   {{"algorithm", algorithm},
                    {"transport", transport},
                    {"ranks", std::to_string(ranks)},
                    {"inner", "auto"}},
                   {{"bytes", bytes}});
}
double expected(const Cluster& cluster, const Record& record, bool on_gpu = true) {
  return Expectation(cluster, on_gpu, {}).promise(record).expected_s;
}

TEST(Expectation, ARingTakesItsClosedFormWithinANode) {
  const Cluster cluster = predict::read_cluster("dgx_a100");
  const double bytes = 1 << 28, rate = 300e9 * 0.78;
  EXPECT_NEAR(expected(cluster, all_reduce("ring", "nccl", 8, bytes)),
              14 * (3e-6 + bytes / 8 / rate), 1e-9);
  const harness::Promise promise =
      Expectation(cluster, true, {}).promise(all_reduce("ring", "nccl", 8, bytes));
  EXPECT_NEAR(promise.specified_s, 14 * bytes / 8 / 300e9, 1e-9);
}

// A plan of one ring crosses a node through one adapter; a library uses all of them.
TEST(Expectation, BetweenNodesAPlanHasItsOwnLinks) {
  const Cluster cluster = predict::read_cluster("dgx_a100");
  const double bytes = 1 << 28;
  const double ring = expected(cluster, all_reduce("ring", "nccl", 16, bytes)),
               library = expected(cluster, all_reduce("library", "nccl", 16, bytes));
  EXPECT_NEAR(ring, 30 * bytes / 16 / cluster.network.rate(), 0.02 * ring);
  EXPECT_GT(ring, 5 * library);
  // Levels: shares within the node, then one sixteenth over each adapter.
  EXPECT_LT(expected(cluster, all_reduce("hierarchical", "nccl", 16, bytes)), ring / 2);
}

TEST(Expectation, OnlyTransportsThatTheFileDescribesHaveOne) {
  const Cluster cluster = predict::read_cluster("two_cores");
  EXPECT_GT(expected(cluster, all_reduce("ring", "shared_memory", 2, 1e6), false), 0);
  EXPECT_GT(expected(cluster, all_reduce("ring", "mpi", 4, 1e6), false), 0);
  EXPECT_EQ(expected(cluster, all_reduce("ring", "mpi", 2, 1e6), false), 0);
  EXPECT_EQ(expected(cluster, all_reduce("ring", "shared_memory", 4, 1e6), false), 0);
  EXPECT_EQ(expected(cluster, all_reduce("ring", "shared_memory", 2, 1e6), true), 0);
  EXPECT_EQ(expected(cluster, all_reduce("ring", "shared_memory", 1, 1e6), false), 0);
  EXPECT_EQ(expected(cluster, record_of("barrier", {{"ranks", "2"}})), 0);
}

TEST(Expectation, KernelsTakeTheirBytesAndOperations) {
  const Cluster cluster = predict::read_cluster("dgx_a100");
  const Record copy = record_of("memory_bandwidth", {{"kernel", "copy"}, {"ranks", "8"}},
                                {{"memory_bytes", 2039e6}});
  EXPECT_NEAR(expected(cluster, copy), 1e-3 / 0.85 + 4e-6, 1e-9);
  const auto product = [](const char* dtype) {
    return record_of("gemm", {{"dtype", dtype}, {"ranks", "1"}, {"shape", "4096x4096x4096"}});
  };
  const double half = expected(cluster, product("bfloat16"));
  EXPECT_GT(half, 2 * 4096.0 * 4096 * 4096 / 312e12);
  EXPECT_GT(expected(cluster, product("float")), 10 * half);
  EXPECT_EQ(expected(cluster, product("double")), 0);
  const Record copied = record_of("host_device_bandwidth",
                                  {{"pages", "pinned"}, {"ranks", "1"}, {"bytes", "25000000"}});
  EXPECT_NEAR(expected(cluster, copied), 1e-3, 1e-12);
}

// The axes of a case and its configuration give the same step as predict.
TEST(Expectation, AStepIsThatOfItsConfiguration) {
  const Cluster cluster = predict::read_cluster("two_cores");
  const auto step = [](const char* batch, const char* dp) {
    return record_of("training_speed", {{"model", "gpt2_124m"},
                                        {"ranks", dp},
                                        {"data-parallel-size", dp},
                                        {"micro-batch-size", "1"},
                                        {"global-batch-size", batch},
                                        {"seq-length", "256"},
                                        {"transport", "shared_memory"}});
  };
  const double one = expected(cluster, step("1", "1"), false);
  EXPECT_GT(one, 1.0);  // 6 x 124e6 x 256 operations at 45 GFLOP/s
  EXPECT_LT(one, 20.0);
  // The update of the parameters does not grow with the batch.
  EXPECT_NEAR(expected(cluster, step("4", "1"), false) / one, 3.7, 0.3);
  EXPECT_GT(expected(cluster, step("2", "2"), false), one);
  // Shorter steps than 20 ms have no prediction.
  Record tiny = step("1", "1");
  tiny.axes[0].second = "tiny";
  tiny.axes[5].second = "model";
  EXPECT_EQ(expected(cluster, tiny, false), 0);
}

TEST(Expectation, FloorsAreReadByKind) {
  Floors floors = default_floors();
  read_floors("0.9,message=0.4", floors);
  EXPECT_EQ(floors,
            (Floors{{"step", 0.9}, {"computation", 0.9}, {"bandwidth", 0.9}, {"message", 0.4}}));
  for (const char* wrong : {"fast", "steps=0.5", "step=", "step=-1", "11"})
    EXPECT_THROW(read_floors(wrong, floors), harness::UsageError) << wrong;
}

// A machine that is slow in all its parts has no outlier, but it is below its floor.
TEST(Expectation, AUniformlySlowMachineIsRejected) {
  harness::RunContext context;
  context.status = "complete";
  const auto run = [&](double slower, double spread) {
    std::vector<Record> records;
    for (const double seconds : {1e-3, 2e-3, 4e-3}) {
      Record record =
          record_of("gemm", {{"ranks", "1"}}, {{"flops", 1e9}, {"expected_s", seconds}});
      record.seconds = slower * seconds;
      record.counters["expected_fraction"] = 1 / slower;
      record.counters["expected_floor"] = 0.8;
      record.counters["ci_low_s"] = record.seconds * (1 - spread);
      records.push_back(record);
    }
    return summarize(context, records);
  };
  EXPECT_EQ(run(1.2, 0).verdict, "ACCEPTED");
  const harness::Summary slow = run(1.3, 0.01);
  EXPECT_EQ(slow.verdict, "REJECTED");
  EXPECT_NE(slow.details.find("3 cases below the expected speed"), std::string::npos)
      << slow.details;
  // The interval of the median reaches the floor.
  EXPECT_EQ(run(1.3, 0.1).verdict, "ACCEPTED");
}

}  // namespace
}  // namespace suite
