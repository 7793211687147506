#include "machine/device/dense_peak.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace machine {
namespace {

// FLOP per clock and multiprocessor: a fused multiply-add is two. 0: no unit.
struct Architecture {
  int compute_capability;
  double float64, float32;
  double float16, bfloat16, float8;  // dense, on tensor cores that accumulate in float
};

// The rates give the totals of the products' data sheets, which dense_peak_test lists. Public
// tables of the data sheets confirm those of V100, A100, A10, A40, H100 and H200. Those of Turing,
// Ada and Blackwell are not compared with a source yet, and no rate with a GPU.
constexpr Architecture architectures[] = {
    {70, 64, 128, 1024, 0, 0},           // V100
    {75, 4, 128, 1024, 0, 0},            // T4
    {80, 128, 128, 2048, 2048, 0},       // A100: float64 on tensor cores
    {86, 4, 256, 1024, 1024, 0},         // A10, A40
    {89, 4, 256, 1024, 1024, 2048},      // L4, L40S
    {90, 256, 256, 4096, 4096, 8192},    // H100, H200: float64 on tensor cores
    {100, 128, 256, 8192, 8192, 16384},  // B200
    {103, 4, 256, 8192, 8192, 16384},    // B300: few units for float64
    {120, 4, 256, 1024, 1024, 2048},     // RTX PRO 6000
};

// The clock for which the vendor publishes the rates of tensor cores, if it is below the highest
// clock. For the H100 it is 1830 MHz; for the others, the clock that gives the data sheet's total.
struct RatedClock {
  std::string_view product;
  double hz;
};
constexpr RatedClock rated_clocks[] = {
    {"NVIDIA H100 80GB HBM3", 1830e6},    // 989.4 TFLOP/s in 16 bits
    {"NVIDIA H100 PCIe", 1620e6},         // 756
    {"NVIDIA H100 NVL", 1545e6},          // 835.5
    {"NVIDIA H200", 1830e6},              // 989.4
    {"NVIDIA H200 NVL", 1545e6},          // 835.5
    {"NVIDIA GH200 480GB", 1830e6},       // 989.4
    {"NVIDIA GH200 144G HBM3e", 1830e6},  // 989.4
    {"NVIDIA L40S", 2490e6},              // 362
    {"NVIDIA L40", 2490e6},               // 181
    {"NVIDIA B200", 1856e6},              // 2250
};

// Consumer products, and the L40, accumulate in float at half the rate.
bool accumulates_slowly(std::string_view product) {
  return product.find("GeForce") != std::string_view::npos || product == "NVIDIA L40";
}

bool on_tensor_cores(Dtype dtype) {
  return dtype == Dtype::float16 || dtype == Dtype::bfloat16 || dtype == Dtype::float8_e4m3 ||
         dtype == Dtype::float8_e5m2;
}

const Architecture* find(int compute_capability) {
  const auto found =
      std::ranges::find(architectures, compute_capability, &Architecture::compute_capability);
  return found == std::end(architectures) ? nullptr : found;
}

}  // namespace

double flop_per_clock(int compute_capability, Dtype dtype) {
  const Architecture* const architecture = find(compute_capability);
  if (!architecture) return 0;
  switch (dtype) {
    case Dtype::float64:
      return architecture->float64;
    case Dtype::float32:
      return architecture->float32;
    case Dtype::float16:
      return architecture->float16;
    case Dtype::bfloat16:
      return architecture->bfloat16;
    case Dtype::float8_e4m3:
    case Dtype::float8_e5m2:
      return architecture->float8;
    default:
      return 0;
  }
}

double dense_peak(const ComputeUnits& units, Dtype dtype) {
  double per_clock = flop_per_clock(units.compute_capability, dtype), clock_hz = units.clock_hz;
  if (on_tensor_cores(dtype)) {
    if (accumulates_slowly(units.product)) per_clock /= 2;
    const auto rated = std::ranges::find(rated_clocks, units.product, &RatedClock::product);
    if (rated != std::end(rated_clocks)) clock_hz = rated->hz;
  }
  return per_clock * units.multiprocessors * clock_hz;
}

std::string why_no_dense_peak(const ComputeUnits& units, Dtype dtype) {
  if (dense_peak(units, dtype) > 0) return "";
  if (units.compute_capability == 0) return "the device is not a GPU";
  if (!find(units.compute_capability))
    return fmt::format("the vendor's peak of sm_{} is not known", units.compute_capability);
  if (flop_per_clock(units.compute_capability, dtype) == 0)
    return fmt::format("sm_{} has no matrix unit for {}", units.compute_capability, name(dtype));
  return "the driver reports no clock";
}

}  // namespace machine
