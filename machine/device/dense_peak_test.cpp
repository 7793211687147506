#include "machine/device/dense_peak.h"

#include <gtest/gtest.h>

namespace machine {
namespace {

// The totals of the products' data sheets, in TFLOP/s: dense, accumulated in float.
TEST(DensePeak, IsThePublishedTotalOfTheProduct) {
  struct Published {
    ComputeUnits units;
    Dtype dtype;
    double total;
  };
  const ComputeUnits v100{"Tesla V100-SXM2-16GB", 70, 80, 1530e6}, t4{"Tesla T4", 75, 40, 1590e6},
      a100{"NVIDIA A100-SXM4-80GB", 80, 108, 1410e6}, a40{"NVIDIA A40", 86, 84, 1740e6},
      a10{"NVIDIA A10", 86, 72, 1695e6}, l4{"NVIDIA L4", 89, 58, 2040e6},
      l40{"NVIDIA L40", 89, 142, 2490e6}, l40s{"NVIDIA L40S", 89, 142, 2520e6},
      rtx_4090{"NVIDIA GeForce RTX 4090", 89, 128, 2520e6},
      h100{"NVIDIA H100 80GB HBM3", 90, 132, 1980e6},
      h100_pcie{"NVIDIA H100 PCIe", 90, 114, 1755e6}, h200{"NVIDIA H200", 90, 132, 1980e6},
      b200{"NVIDIA B200", 100, 148, 1965e6};
  using enum Dtype;
  for (const auto& [units, dtype, total] :
       {Published{v100, float16, 125}, {v100, float32, 15.7},
        {v100, float64, 7.8},          {t4, float16, 65},
        {a100, bfloat16, 312},         {a100, float16, 312},
        {a100, float32, 19.5},         {a100, float64, 19.5},
        {a40, bfloat16, 149.7},        {a40, float32, 37.4},
        {a10, bfloat16, 125},          {l4, bfloat16, 121},
        {l4, float8_e4m3, 242},        {l40, bfloat16, 181},
        {l40s, bfloat16, 362},         {rtx_4090, bfloat16, 165.2},
        {rtx_4090, float32, 82.6},     {h100, bfloat16, 989.4},
        {h100, float8_e4m3, 1978.9},   {h100, float8_e5m2, 1978.9},
        {h100, float32, 66.9},         {h100, float64, 66.9},
        {h100_pcie, bfloat16, 756},    {h100_pcie, float32, 51.2},
        {h200, bfloat16, 989.4},       {b200, bfloat16, 2250},
        {b200, float8_e4m3, 4500}}) {
    EXPECT_NEAR(dense_peak(units, dtype) / 1e12 / total, 1, 0.01)
        << units.product << " " << name(dtype);
    EXPECT_EQ(why_no_dense_peak(units, dtype), "");
  }
}

TEST(DensePeak, OfAnotherProductIsThatOfItsHighestClock) {
  const ComputeUnits units{"another", 90, 10, 2e9};
  EXPECT_DOUBLE_EQ(dense_peak(units, Dtype::bfloat16), 4096 * 10 * 2e9);
}

TEST(DensePeak, IsZeroWithAReasonIfUnknown) {
  using enum Dtype;
  const auto why = [](const ComputeUnits& units, Dtype dtype) {
    EXPECT_EQ(dense_peak(units, dtype), 0);
    return why_no_dense_peak(units, dtype);
  };
  EXPECT_EQ(why({}, float32), "the device is not a GPU");
  EXPECT_EQ(why({"next", 999, 100, 2e9}, bfloat16), "the vendor's peak of sm_999 is not known");
  EXPECT_EQ(why({"Tesla T4", 75, 40, 1590e6}, bfloat16), "sm_75 has no matrix unit for bfloat16");
  EXPECT_EQ(why({"NVIDIA A10", 86, 72, 1695e6}, int8), "sm_86 has no matrix unit for int8");
  EXPECT_EQ(why({"NVIDIA A10", 86, 72, 0}, float32), "the driver reports no clock");
}

}  // namespace
}  // namespace machine
