#include "harness/measure/matrix_rate.h"

#include <algorithm>
#include <cmath>

#include "harness/measure/batches.h"
#include "machine/base/error.h"
#include "machine/device/gemm.h"
#include "machine/device/kernels.h"
#include "machine/device/tensor.h"

namespace harness {

using machine::Dtype;

namespace {

double flop(std::int64_t extent) { return 2 * std::pow(static_cast<double>(extent), 3); }

// Returns the shorter time: of a b, or of a bᵀ, which is that of a linear layer. Libraries have
// other kernels for each.
double seconds_of_product(machine::Device& device, Dtype dtype, std::int64_t extent,
                          Batches batches) {
  const machine::Shape shape{extent, extent};
  const machine::Tensor a(device, dtype, shape, machine::Category::buffers);
  const machine::Tensor b(device, dtype, shape, machine::Category::buffers);
  const machine::Tensor c(device, dtype, shape, machine::Category::buffers);
  machine::Kernels& kernels = device.stream().kernels();
  kernels.fill_uniform(a, 1, {0, 0, extent}, -1, 1);
  kernels.fill_uniform(b, 2, {0, 0, extent}, -1, 1);
  batches.total_s /= 2;
  const auto seconds = [&](const machine::Matrix& right) {
    return seconds_of([&] { gemm(device.stream(), matrix(a), right, matrix(c)); },
                      [&] { device.stream().synchronize(); }, batches);
  };
  return std::min(seconds(matrix(b)), seconds(matrix(b).transposed()));
}

}  // namespace

// On a GPU five extents of a quarter of a second or more: over a second of work for each dtype. On
// a host beside other work, a short product may have all cores when a longer one has not.
MatrixPlan matrix_plan(bool gpu) {
  if (gpu) return {{1024, 2048, 4096, 8192, 16384}, 0.1, 0.3, 0.5};
  return {{256, 512, 1024}, 1e-3, 80e-3, 0.5};
}

std::vector<Dtype> matrix_dtypes(bool gpu) {
  using enum Dtype;
  if (gpu) return {float32, bfloat16, float16, float64};
  return {float32, bfloat16};
}

bool has_gpu_speed(const machine::Device& device) {
  return device.kind() == machine::Device::Kind::cuda && !machine::cuda::is_virtual();
}

std::int64_t next_extent(const MatrixPlan& plan, std::span<const MatrixTime> timed) {
  if (timed.size() >= plan.extents.size()) return 0;
  const std::int64_t next = plan.extents[timed.size()];
  if (timed.empty()) return next;
  const double predicted_s = timed.back().seconds * flop(next) / flop(timed.back().extent);
  return predicted_s > plan.longest_s ? 0 : next;
}

double matrix_rate(std::span<const MatrixTime> timed) {
  double best = 0;
  for (const MatrixTime& one : timed)
    if (one.seconds > 0) best = std::max(best, flop(one.extent) / one.seconds);
  return best;
}

std::vector<MatrixTime> time_matrices(machine::Device& device, Dtype dtype, const MatrixPlan& plan,
                                      std::atomic<std::uint64_t>* progress) {
  const Batches batches{plan.batch_s, plan.total_s, progress};
  std::vector<MatrixTime> timed;
  while (const std::int64_t extent = next_extent(plan, timed)) {
    try {
      timed.push_back({extent, seconds_of_product(device, dtype, extent, batches)});
    } catch (const machine::MachineError&) {
      break;
    }
  }
  return timed;
}

}  // namespace harness
