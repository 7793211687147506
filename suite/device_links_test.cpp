// Units whose communication stays on CUDA devices. Every oracle of a case rules.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "machine/testing/nccl_calls.h"
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
      if (record.name.find("transport:nccl") != std::string::npos) expect_staging_judged(record);
    }
  }
  // A sum over nccl needs memory for the received terms, which only this category shows.
  static void expect_staging_judged(const harness::Record& record) {
    const std::vector<std::string> sums{"mlp", "row_parallel_linear", "zero_step", "gpt_step"};
    if (std::ranges::find(sums, record.unit) == sums.end()) return;
    const auto links =
        std::ranges::find(record.memory, std::string("links"), &harness::CategoryBytes::category);
    ASSERT_NE(links, record.memory.end()) << record.name;
    EXPECT_EQ(links->measured, links->expected) << record.name;
  }
  static void expect_ruled(const std::string& unit, AxisFlags flags, int ranks) {
    flags.insert({"transport", std::string(name(GetParam().transport))});
    expect_ruled(harness::plan_cases({unit}, {harness::Profile::smoke, flags}), ranks);
  }
  static void expect_steps_ruled(AxisFlags flags, int ranks) {
    flags.insert(
        {{"transport", std::string(name(GetParam().transport))}, {"ranks", std::to_string(ranks)}});
    // The library does not count its bytes, so the oracle of volume would not rule.
    flags.insert({{"tp-algorithm", "ours"}, {"dp-algorithm", "ours"}});
    // Every other case over each link, because the step's own code is the same.
    const auto all = small_steps::steps(flags);
    std::vector<harness::PlannedCase> some;
    for (std::size_t i = GetParam().transport == machine::Transport::nccl ? 1 : 0; i < all.size();
         i += 2)
      some.push_back(all[i]);
    expect_ruled(some.empty() ? all : some, ranks);
  }
};

TEST_P(OverDeviceLinks, Layers) {
  for (const char* unit :
       {"mlp", "self_attention", "transformer_block", "vocabulary_parallel_embedding",
        "vocabulary_parallel_cross_entropy", "column_parallel_linear", "row_parallel_linear"})
    expect_ruled(unit, {{"ranks", "3"}, {"dtype", "float"}}, 3);
}

TEST_P(OverDeviceLinks, ContextParallelAttention) {
  for (const char* unit : {"ring_attention", "ulysses_attention"})
    expect_ruled(unit, {{"ranks", "3"}, {"dtype", "float"}, {"placement", "zigzag"}}, 3);
  expect_ruled("fpdt_attention", {{"ranks", "3"}, {"dtype", "float"}, {"causal", "on"}}, 3);
}

// Covers roots of broadcasts and sums, shifts, and ranks without a part of a bias.
TEST_P(OverDeviceLinks, TensorGrids) {
  for (const char* unit : {"grid_linear", "grid_norm"})
    expect_ruled(unit, {{"ranks", "4"}, {"dtype", "bfloat16"}}, 4);
  expect_ruled("grid_linear",
               {{"ranks", "4"}, {"dtype", "float"}, {"tensor-parallel-product", "cannon"}}, 4);
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
  expect_ruled("zero_step", {{"ranks", "3"}, {"zero-stage", "0,1,2,3"}, {"overlap_comm", "on"}}, 3);
  expect_ruled(
      "zero_step",
      {{"ranks", "2"}, {"zero-stage", "2"}, {"overlap_comm", "on"}, {"offload_optimizer", "cpu"}},
      2);
  expect_ruled("constant_buffers", {{"ranks", "3"}}, 3);
}

TEST_P(OverDeviceLinks, PipelineSteps) { expect_ruled("pipeline_step", {{"ranks", "2"}}, 2); }

TEST_P(OverDeviceLinks, LinksAndOverlap) {
  expect_ruled("link_matrix", {}, 3);
  expect_ruled("overlap", {{"ranks", "3"}}, 3);
}

TEST_P(OverDeviceLinks, TrainingSteps) {
  expect_steps_ruled({{"tensor-model-parallel-size", "2"},
                      {"sequence-parallel", "on"},
                      {"overlap-p2p-communication", "on"}},  // without effect, but accepted
                     2);
  expect_steps_ruled({{"model-args", "--num-layers 5"},
                      {"pipeline-model-parallel-size", "2"},
                      {"schedule", "1f1b,zb_v"}},
                     2);
  expect_steps_ruled({{"data-parallel-size", "2"}, {"zero-stage", "1,2"}}, 2);
  expect_steps_ruled(
      {{"data-parallel-size", "2"}, {"zero-stage", "3"}, {"model-args", "--overlap-grad-reduce"}},
      2);
  const int dp = GetParam().transport == machine::Transport::nccl ? 1 : 2;  // a device per rank
  expect_steps_ruled({{"tensor-model-parallel-size", "2"},
                      {"pipeline-model-parallel-size", "2"},
                      {"data-parallel-size", std::to_string(dp)}},
                     4 * dp);
}

// Codes and residuals stay on the devices, whose memory is judged.
TEST_P(OverDeviceLinks, CompressedSums) {
  expect_ruled("compressed_all_reduce", {{"ranks", "3"}, {"bytes", "4036"}}, 3);
  expect_ruled("compressed_all_reduce",
               {{"ranks", "3"},
                {"bytes", "24036"},
                {"algorithm", "top_k,threshold,deviation"},
                {"density", "0.01"}},
               3);
  const AxisFlags dp_2{{"data-parallel-size", "2"}, {"optimizer", "sgd"}};
  for (const auto& [axis, value, stage] : {std::tuple{"gradient-compression", "int8_block", "1"},
                                           {"gradient-compression", "half_wire", "0"},
                                           {"gradient-compression", "top_k", "0"},
                                           {"gradient-compression", "deviation", "1"},
                                           {"optimizer", "one_bit_adam", "0"}}) {
    AxisFlags flags = dp_2;
    flags[axis] = value;
    flags["zero-stage"] = stage;
    expect_steps_ruled(flags, 2);
  }
}

// All sums and gathers of tp and dp are NCCL's own, by default and if selected. A group that ran
// our plans would send, or would send bytes that the oracle of volume does not expect.
TEST_P(OverDeviceLinks, TrainingStepsByTheLibrary) {
  if (GetParam().transport != machine::Transport::nccl) GTEST_SKIP() << "only nccl has a library";
  const auto run = [](AxisFlags flags) {
    flags.insert({{"transport", "nccl"}, {"ranks", "4"}, {"tensor-model-parallel-size", "2"}});
    const std::vector<harness::PlannedCase> cases = small_steps::steps(flags);
    EXPECT_FALSE(cases.empty());
    return on_threads::run(cases, 4, 0.001, {}, GetParam().devices);
  };
  const auto expect_ruled_except_volume = [](const harness::Record& record, Ruling volume) {
    EXPECT_EQ(record.verdict, Ruling::pass) << record.name << ": " << record.reason;
    for (const harness::OracleResult& result : record.oracles)
      EXPECT_EQ(result.ruling, result.oracle == harness::Oracle::volume ? volume : Ruling::pass)
          << record.name << ": " << name(result.oracle) << ": " << result.text;
    EXPECT_NE(record.note.find("the library's collectives in groups tp"), std::string::npos)
        << record.note;
  };
  const auto before = machine::nccl_calls();
  for (const char* algorithm : {"default", "library"})
    for (const harness::Record& record : run({{"data-parallel-size", "2"},
                                              {"sequence-parallel", "on"},
                                              {"zero-stage", algorithm[0] == 'd' ? "0" : "1,3"},
                                              {"tp-algorithm", algorithm},
                                              {"dp-algorithm", algorithm}}))
      expect_ruled_except_volume(record, Ruling::skipped);
  if (const auto after = machine::nccl_calls()) {
    EXPECT_EQ(after->sends, before->sends);
    EXPECT_GT(after->all_reduces, before->all_reduces);
    EXPECT_GT(after->all_gathers, before->all_gathers);
    EXPECT_GT(after->reduce_scatters, before->reduce_scatters);
  }
  // The stages and the two copies of the table use messages, which are counted.
  for (const harness::Record& record :
       run({{"pipeline-model-parallel-size", "2"}, {"tp-algorithm", "library"}}))
    expect_ruled_except_volume(record, Ruling::pass);
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

TEST(DeviceLinks, AreRejectedByUnitsThatSendHostMemory) {
  for (const char* transport : {"cuda_ipc", "nccl"}) {
    EXPECT_EQ(on_threads::refusal("pipeline_bubble", {{"transport", transport}}),
              fmt::format("transport {}: the unit sends host memory; use shared_memory or mpi "
                          "(unit pipeline_bubble)",
                          transport));
  }
}

}  // namespace
}  // namespace suite
