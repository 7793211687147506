#include "suite/plan/fitting.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "harness/testing/test_folder.h"
#include "suite/configuration/models.h"
#include "suite/plan/host_memory.h"
#include "suite/testing/file_case.h"

namespace suite::configuration {
namespace {

using suite::testing::expect_words;

constexpr double GiB = 0x1p30;

TrainingConfig model(const std::string& name) {
  TrainingConfig config;
  set_model(config, name);
  config.precision.dtype = machine::Dtype::bfloat16;
  config.activations.recompute_granularity = layers::recompute_granularity("full");
  config.batch.global_batch_size = 64;
  return config;
}

// Returns why a rank with a GPU of this size, and 1 TiB of host memory, cannot hold its stage.
std::string why(const TrainingConfig& config, double gpu_memory, int stage = 0,
                double reference = 0, double host_memory = 1024 * GiB) {
  const std::string text = why_too_large(
      config, stage, {.device = gpu_memory, .host = host_memory, .computes_on_gpu = true},
      reference);
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  return text;
}

// 2 + 4 + 12 bytes for each parameter: 113 GiB.
TEST(Fitting, AModelOf7BillionNeedsSeveralGpusOf80GiB) {
  const std::string text = why(model("llama2_7b"), 80 * GiB);
  expect_words(text, {"a rank needs at least 1", "GiB of device memory", "80.0 GiB are available",
                      "parameters 12.6 GiB", "gradients 25.1 GiB", "optimizer 75.3 GiB",
                      "the nearest degrees that fit are", "= 2 ranks"});
  EXPECT_EQ(why(model("llama2_7b"), 256 * GiB), "");
}

TEST(Fitting, TheNearestDegreesFitOnEveryStage) {
  TrainingConfig config = model("llama2_70b");
  config.degrees.dp = 2;
  const Room room{.device = 80 * GiB, .host = 1024 * GiB, .computes_on_gpu = true};
  const std::optional<machine::Degrees> nearest = nearest_degrees(config, room);
  ASSERT_TRUE(nearest);
  EXPECT_EQ(nearest->dp, 2);
  EXPECT_GE(nearest->tp * nearest->pp, 16);  // 18 bytes for each of 69e9 parameters, over 80 GiB
  EXPECT_LE(nearest->tp * nearest->pp, 32);
  config.degrees = *nearest;
  for (int stage = 0; stage < nearest->pp; ++stage)
    EXPECT_EQ(why_too_large(config, stage, room), "") << stage;
  EXPECT_FALSE(nearest_degrees(config, {.device = 0x1p20, .computes_on_gpu = true}));
}

// Numbers of elements and bytes exceed 32 bits on every path.
TEST(Fitting, CountsIn64Bits) {
  TrainingConfig config = model("gpt3_175b");
  const Held held = held_by_stage(config, 0);
  EXPECT_NEAR(held.gpu.parameters, 2 * 175e9, 2e9);
  EXPECT_NEAR(held.gpu_at_start, 6 * 175e9, 6e9);
  EXPECT_EQ((machine::Degrees{.tp = 65536, .dp = 65536}).ranks(), 2147483647);
  config.degrees.dp = 65536;
  config.batch.micro_batch_size = 65536;
  EXPECT_EQ(config.micro_batches(), 0);
}

// ZeRO stage 3 shards values, but holds them whole until its first step is made.
TEST(Fitting, TheStartOfZeroStage3HoldsWholeValues) {
  TrainingConfig config = model("llama2_7b");
  config.degrees.dp = 64;
  config.zero.stage = 3;
  expect_words(why(config, 30 * GiB), {"37.", "the start holds whole values and gradients"});
  EXPECT_EQ(why(config, 64 * GiB), "");
}

TEST(Fitting, TheReferenceIsTheFirstThingToLeaveOut) {
  const std::string text = why(model("tiny"), GiB, 0, 64 * GiB, 32 * GiB);
  expect_words(text, {"64.0 GiB of host memory", "32.0 GiB are available",
                      "share of the reference in double 64.0 GiB", "--reference none"});
}

// On one host, a stage may need more than its share if another needs less.
TEST(Fitting, TheStagesOfOneHostShareItsMemory) {
  TrainingConfig config = model("gpt2_124m");
  config.precision.dtype = machine::Dtype::float32;
  config.degrees.pp = 2;
  Room room;
  const auto bytes = [&](int stage) {
    const Held held = held_by_stage(config, stage);
    return held.gpu.total() + held.cpu.total();
  };
  ASSERT_NE(bytes(0), bytes(1));
  room.host = (bytes(0) + bytes(1)) / 2;
  const int larger = bytes(0) > bytes(1) ? 0 : 1;
  expect_words(why_too_large(config, larger, room),
               {fmt::format("a rank of pipeline stage {} needs", larger), "of host memory"});
  room.one_host = true;
  EXPECT_EQ(why_too_large(config, larger, room), "");
  room.host -= 1;
  expect_words(why_too_large(config, larger, room), {"a rank needs at least"});
}

TEST(Fitting, AnUnknownRoomRefusesNothing) { EXPECT_EQ(why(model("llama2_70b"), 0, 0, 0, 0), ""); }

// The least of what the host has and what each control group above the process allows.
TEST(HostMemory, IsTheLeastOfAllLimits) {
  const harness::TestFolder folder;
  const std::string root = folder.path("");
  EXPECT_EQ(host_memory(root).room, 0) << "unknown";
  folder.put("proc/meminfo", "MemTotal: 4000 kB\nMemAvailable:   1000 kB\nSwapFree: 7 kB\n");
  folder.put("proc/self/statm", "500 3 1 1 0 1 0\n");
  EXPECT_EQ(host_memory(root).room, 1000 * 1024);
  EXPECT_GT(host_memory(root).held, 0);
  folder.put("proc/self/cgroup", "0::/slice/job\n");
  folder.put("sys/fs/cgroup/slice/job/memory.max", "max\n");
  folder.put("sys/fs/cgroup/slice/job/memory.current", "5000\n");
  EXPECT_EQ(host_memory(root).room, 1000 * 1024) << "no limit";
  folder.put("sys/fs/cgroup/slice/memory.max", "900000\n");
  folder.put("sys/fs/cgroup/slice/memory.current", "500000\n");
  EXPECT_EQ(host_memory(root).room, 400000);
  folder.put("sys/fs/cgroup/slice/memory.stat", "anon 1\ninactive_file 100000\n");
  EXPECT_EQ(host_memory(root).room, 500000);
  folder.put("sys/fs/cgroup/slice/job/memory.max", "5001\n");
  EXPECT_EQ(host_memory(root).room, 1);
}

}  // namespace
}  // namespace suite::configuration
