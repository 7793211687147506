// Units whose communication stays on CUDA devices. Every oracle of a case rules.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "suite/testing/on_threads.h"
#include "suite/testing/small_steps.h"

namespace suite {
namespace {

using harness::AxisFlags;
using harness::Ruling;

struct OnDevices {
  machine::Transport transport;
  int devices;
};

class OverDeviceLinks : public testing::TestWithParam<OnDevices> {
 protected:
  void SetUp() override {
    if (machine::cuda::count() < GetParam().devices)
      GTEST_SKIP() << "fewer than " << GetParam().devices << " CUDA devices";
  }
  // Expects that all oracles of all cases pass.
  static void expect_ruled(const std::vector<harness::PlannedCase>& cases, int ranks) {
    EXPECT_FALSE(cases.empty());
    for (const harness::Record& record :
         on_threads::run(cases, ranks, 0.001, {}, GetParam().devices)) {
      EXPECT_EQ(record.verdict, Ruling::pass) << record.name << ": " << record.reason;
      for (const harness::OracleResult& result : record.oracles)
        EXPECT_EQ(result.ruling, Ruling::pass)
            << record.name << ": " << name(result.oracle) << ": " << result.text;
    }
  }
  static void expect_ruled(const std::string& unit, AxisFlags flags, int ranks) {
    flags.insert({"transport", std::string(name(GetParam().transport))});
    expect_ruled(harness::plan_cases({unit}, {harness::Profile::smoke, flags}), ranks);
  }
  static void expect_steps_ruled(AxisFlags flags, int ranks) {
    flags.insert(
        {{"transport", std::string(name(GetParam().transport))}, {"ranks", std::to_string(ranks)}});
    expect_ruled(small_steps::steps(flags), ranks);
  }
};

TEST_P(OverDeviceLinks, Layers) {
  for (const char* unit : {"mlp", "self_attention", "transformer_block",
                           "vocabulary_parallel_embedding", "vocabulary_parallel_cross_entropy"})
    expect_ruled(unit, {{"ranks", "2,3"}, {"dtype", "float"}}, 3);
  for (const char* unit : {"column_parallel_linear", "row_parallel_linear"})
    expect_ruled(unit, {{"ranks", "3"}, {"dtype", "float"}}, 3);
}

TEST_P(OverDeviceLinks, ContextParallelAttention) {
  for (const char* unit : {"ring_attention", "ulysses_attention"})
    expect_ruled(unit, {{"ranks", "3"}, {"dtype", "float"}, {"placement", "zigzag"}}, 3);
}

// The ring's own messages pass through host memory.
TEST_P(OverDeviceLinks, RingAttentionWithStagedMessages) {
  expect_ruled("ring_attention",
               {{"ranks", "3"},
                {"dtype", "float"},
                {"placement", "striped"},
                {"transport", "shared_memory"}},
               3);
}

TEST_P(OverDeviceLinks, ZeroSteps) {
  expect_ruled("zero_step", {{"ranks", "3"}, {"zero-stage", "0,1,2,3"}, {"overlap_comm", "off"}},
               3);
  expect_ruled(
      "zero_step",
      {{"ranks", "2"}, {"zero-stage", "2"}, {"overlap_comm", "off"}, {"offload_optimizer", "cpu"}},
      2);
  expect_ruled("constant_buffers", {{"ranks", "3"}}, 3);
}

TEST_P(OverDeviceLinks, PipelineSteps) { expect_ruled("pipeline_step", {{"ranks", "2"}}, 2); }

TEST_P(OverDeviceLinks, LinksAndOverlap) {
  expect_ruled("link_matrix", {}, 3);
  expect_ruled("overlap", {{"ranks", "3"}}, 3);
}

TEST_P(OverDeviceLinks, TrainingSteps) {
  expect_steps_ruled({{"tensor-model-parallel-size", "2"}, {"sequence-parallel", "off,on"}}, 2);
  expect_steps_ruled({{"model-args", "--num-layers 5"},
                      {"pipeline-model-parallel-size", "2"},
                      {"schedule", "1f1b,zb_v"}},
                     2);
  expect_steps_ruled({{"data-parallel-size", "2"}, {"zero-stage", "0,1,2,3"}}, 2);
  const int dp = GetParam().transport == machine::Transport::nccl ? 1 : 2;  // a device per rank
  expect_steps_ruled({{"tensor-model-parallel-size", "2"},
                      {"pipeline-model-parallel-size", "2"},
                      {"data-parallel-size", std::to_string(dp)}},
                     4 * dp);
}

// Staged communication holds its memory on the host. The memory oracle rules on the device's.
TEST_P(OverDeviceLinks, MemoryIsJudgedWithStagedMessages) {
  expect_steps_ruled({{"tensor-model-parallel-size", "2"},
                      {"data-parallel-size", "2"},
                      {"transport", "shared_memory"}},
                     4);
}

INSTANTIATE_TEST_SUITE_P(, OverDeviceLinks,
                         testing::Values(OnDevices{machine::Transport::cuda_ipc, 2},
                                         OnDevices{machine::Transport::nccl, 4}),
                         [](const auto& info) {
                           return fmt::format("{}_on_{}", name(info.param.transport),
                                              info.param.devices);
                         });

// These units send host memory.
TEST(DeviceLinks, AreRejectedByUnitsThatSendHostMemory) {
  for (const char* unit : {"compressed_all_reduce", "error_feedback", "pipeline_bubble"})
    for (const char* transport : {"cuda_ipc", "nccl"})
      EXPECT_EQ(on_threads::refusal(unit, {{"transport", transport}}),
                fmt::format("transport {}: the unit sends host memory; use shared_memory or mpi "
                            "(unit {})",
                            transport, unit));
}

}  // namespace
}  // namespace suite
