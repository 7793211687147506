#include "suite/predict/kernel_time.h"

#include <algorithm>
#include <cmath>

namespace suite::predict {
namespace {

// Returns the share of the multiprocessors that are busy, over all waves of tiles. The last wave is
// not full.
double filled(const Gpu& gpu, const Gemm& gemm, double rows, double columns) {
  const double used = gemm.m * gemm.n / (rows * columns) * gemm.count;
  const double tiles = std::ceil(gemm.m / rows) * std::ceil(gemm.n / columns) * gemm.count;
  return used / (std::ceil(tiles / gpu.multiprocessors) * gpu.multiprocessors);
}

// in, out: bytes of an element of the operands and of the result.
double product_s(const Gpu& gpu, const Gemm& gemm, double peak, double in, double out) {
  // Libraries choose the better orientation of a tile, and half of it for small products.
  const double rows = gpu.tile_rows, columns = gpu.tile_columns;
  const double busy = std::max({filled(gpu, gemm, rows, columns), filled(gpu, gemm, columns, rows),
                                filled(gpu, gemm, rows, columns / 2)});
  const double rate = peak * gpu.gemm_fraction * busy * gemm.k / (gemm.k + gpu.gemm_depth);
  const double bytes =
      ((gemm.m * gemm.k + gemm.k * gemm.n) * in + gemm.m * gemm.n * out) * gemm.count;
  return std::max(gemm.flops() / rate, bytes / (gpu.bandwidth * gpu.bandwidth_fraction)) +
         gpu.kernel_s;
}

}  // namespace

double gemm_s(const Gpu& gpu, const Gemm& gemm, machine::Dtype dtype) {
  const auto width = static_cast<double>(machine::size_of(dtype));
  return product_s(gpu, gemm, gpu.peak(dtype), width, width);
}

double gemm_of_codes_s(const Gpu& gpu, const Gemm& gemm, double result_bytes) {
  return product_s(gpu, gemm, gpu.fp8, 1, result_bytes);
}

double streaming_s(const Gpu& gpu, double bytes, double kernels) {
  return bytes / (gpu.bandwidth * gpu.bandwidth_fraction) + kernels * gpu.kernel_s;
}

}  // namespace suite::predict
