#include "harness/measure/matrix_rate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "machine/device/faults.h"

namespace harness {
namespace {

using machine::Dtype;

double flop(std::int64_t extent) {
  const auto n = static_cast<double>(extent);
  return 2 * n * n * n;
}

// Times the plan's products on a pretended device of these FLOP/s by extent.
std::vector<MatrixTime> pretend(const MatrixPlan& plan, const auto& rate_of) {
  std::vector<MatrixTime> timed;
  while (const std::int64_t extent = next_extent(plan, timed))
    timed.push_back({extent, flop(extent) / rate_of(extent)});
  return timed;
}

// Small products leave most of a GPU idle.
TEST(MatrixRate, OfAGpuIsTheBestOverLargeExtents) {
  const MatrixPlan plan = matrix_plan(true);
  EXPECT_EQ(plan.extents, (std::vector<std::int64_t>{1024, 2048, 4096, 8192, 16384}));
  const auto timed = pretend(plan, [](std::int64_t extent) {
    return extent == 1024 ? 100e12 : extent == 8192 ? 700e12 : extent == 16384 ? 650e12 : 400e12;
  });
  ASSERT_EQ(timed.size(), 5u);
  EXPECT_DOUBLE_EQ(matrix_rate(timed), 700e12);
}

TEST(MatrixRate, OfAGpuComesFromOverASecondOfWork) {
  const MatrixPlan plan = matrix_plan(true);
  EXPECT_GE(plan.total_s * static_cast<double>(plan.extents.size()), 1);
  EXPECT_LE(plan.batch_s, plan.total_s);
}

// 16384 in double would take 18 s on a GPU with few such units.
TEST(MatrixRate, LeavesOutProductsThatTakeTooLong) {
  const MatrixPlan plan = matrix_plan(true);
  const auto timed = pretend(plan, [](std::int64_t) { return 0.5e12; });
  ASSERT_EQ(timed.size(), 3u);
  for (const MatrixTime& one : timed) EXPECT_LE(one.seconds, plan.longest_s);
  EXPECT_DOUBLE_EQ(matrix_rate(timed), 0.5e12);
}

TEST(MatrixRate, OfASlowHostLeavesOutTheLargestProduct) {
  const MatrixPlan plan = matrix_plan(false);
  EXPECT_EQ(plan.extents, (std::vector<std::int64_t>{256, 512, 1024}));
  EXPECT_LE(plan.total_s, 80e-3);
  const auto timed = pretend(plan, [](std::int64_t) { return 1e9; });
  ASSERT_EQ(timed.size(), 2u);
  EXPECT_DOUBLE_EQ(matrix_rate(timed), 1e9);
}

TEST(MatrixRate, WithoutTimesIsZero) { EXPECT_EQ(matrix_rate({}), 0); }

TEST(MatrixRate, IsMeasuredForTheDtypesOfTraining) {
  for (const bool gpu : {false, true})
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16})
      EXPECT_EQ(std::ranges::count(matrix_dtypes(gpu), dtype), 1);
  EXPECT_EQ(std::ranges::count(matrix_dtypes(true), Dtype::float16), 1);
}

TEST(MatrixRate, TimesThePlanOnADevice) {
  const auto device = machine::make_host_device();
  const auto timed = time_matrices(*device, Dtype::float32, {{8, 16}, 1e-5, 1e-4, 1}, nullptr);
  ASSERT_EQ(timed.size(), 2u);
  EXPECT_EQ(timed[1].extent, 16);
  EXPECT_GT(matrix_rate(timed), 0);
  EXPECT_FALSE(has_gpu_speed(*device));
}

// A GPU may not have the memory of the largest product.
TEST(MatrixRate, EndsWhereMemoryDoes) {
  const auto device = machine::make_host_device();
  machine::Faults faults;
  faults.memory_bytes = 3 * 16 * 16 * 4 + 1000;
  device->set_faults(&faults);
  const auto timed = time_matrices(*device, Dtype::float32, {{8, 16, 32}, 1e-5, 1e-4, 1}, nullptr);
  ASSERT_EQ(timed.size(), 2u);
  EXPECT_EQ(device->ledger().current(), 0u);
}

}  // namespace
}  // namespace harness
