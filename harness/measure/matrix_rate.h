#pragma once
// The measured rate of multiplying matrices: the square products that are timed, and the rate that
// follows from their times. A GPU needs products of thousands of rows before it is busy, and a
// second of work before its clocks are those of sustained work.

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "machine/device/device.h"
#include "machine/device/dtype.h"

namespace harness {

// The products of one dtype. Each extent n is a product [n, n] x [n, n].
struct MatrixPlan {
  std::vector<std::int64_t> extents;  // rising
  double batch_s = 0, total_s = 0;    // of each extent (Batches, batches.h)
  double longest_s = 0;               // a product that should take longer is left out
};

// Returns the products that are timed on a GPU, or on a host. A virtual GPU counts as a host: it
// has no speed.
MatrixPlan matrix_plan(bool gpu);
// Returns the dtypes that are timed.
std::vector<machine::Dtype> matrix_dtypes(bool gpu);
// Returns whether the device is a GPU with a speed.
bool has_gpu_speed(const machine::Device& device);

struct MatrixTime {
  std::int64_t extent = 0;
  double seconds = 0;  // of one product
};

// Returns the extent to time after these; 0: none is left. The time of a product grows with the
// third power of its extent, so the last time predicts the next.
std::int64_t next_extent(const MatrixPlan& plan, std::span<const MatrixTime> timed);
// Returns the best rate, in FLOP/s; 0: no product was timed.
double matrix_rate(std::span<const MatrixTime> timed);

// Times the plan's products on the device's stream. Ends at the first product that the device
// cannot compute: it does not fit into memory, or the library has none for the dtype. progress: as
// in Batches.
std::vector<MatrixTime> time_matrices(machine::Device& device, machine::Dtype dtype,
                                      const MatrixPlan& plan, std::atomic<std::uint64_t>* progress);

}  // namespace harness
