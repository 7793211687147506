#include "suite/training_step/utilization.h"

#include <gtest/gtest.h>

namespace suite {
namespace {

using machine::ComputeUnits;
using machine::Dtype;

const ComputeUnits a100{"NVIDIA A100-SXM4-80GB", 80, 108, 1410e6};

TEST(Utilization, OfAGpuIsOfTheVendorsPeak) {
  const Utilization bfloat16 = utilization(156e12, 260e12, a100, Dtype::bfloat16);
  EXPECT_NEAR(bfloat16.of_peak, 0.5, 0.005);
  EXPECT_DOUBLE_EQ(bfloat16.of_gemm, 0.6);
  EXPECT_NEAR(bfloat16.peak, 312e12, 1e12);
  EXPECT_EQ(bfloat16.note, "");
  EXPECT_NEAR(utilization(9.75e12, 0, a100, Dtype::float32).of_peak, 0.5, 0.005);
  EXPECT_EQ(utilization(9.75e12, 0, a100, Dtype::float32).of_gemm, 0) << "not measured";
}

TEST(Utilization, OfAnUnknownGpuSaysSo) {
  const Utilization unknown = utilization(1e12, 2e12, {"next", 999, 100, 2e9}, Dtype::bfloat16);
  EXPECT_EQ(unknown.of_peak, 0);
  EXPECT_EQ(unknown.peak, 0);
  EXPECT_DOUBLE_EQ(unknown.of_gemm, 0.5);
  EXPECT_EQ(unknown.note, "no mfu: the vendor's peak of sm_999 is not known");
}

TEST(Utilization, OfAHostIsOfItsMeasuredRate) {
  const Utilization host = utilization(1e9, 4e9, {}, Dtype::float32);
  EXPECT_DOUBLE_EQ(host.of_peak, 0.25);
  EXPECT_EQ(host.of_gemm, 0);
  EXPECT_EQ(host.peak, 0);
  EXPECT_EQ(host.note, "");
  EXPECT_EQ(utilization(1e9, 0, {}, Dtype::float32).of_peak, 0) << "not measured";
}

}  // namespace
}  // namespace suite
