#pragma once
// The parts of LayerNorm over rows whose columns are split over ranks. The caller adds up the sums
// of all ranks between two calls (an all-reduce), so every rank normalizes with the same
// statistics.
//
//   const auto norm = machine::make_split_norm(device);
//   norm->sums(x, sums);                    // [2, rows]: of x, of x²
//   row.all_reduce(sums);
//   norm->normalize(x, sums, columns, gain, bias, epsilon, y, mean, rstd);
//
// x and the others like it are this rank's [rows, cols] of `columns` columns, in float, bfloat16,
// half or double; gain and bias are [cols]. Sums, mean and rstd are accumulators: float, or double
// for double. The variance is E[x²] - E[x]² (Xu et al. 2021, arXiv:2104.05343), at
// least 0, so that one all-reduce is enough. Sizes that disagree throw std::logic_error.

#include <cstdint>
#include <memory>

#include "machine/device/tensor.h"

namespace machine {

class SplitNorm {
 public:
  virtual ~SplitNorm() = default;

  virtual void sums(const Tensor& x, const Tensor& sums) const = 0;
  // y = gain (x - mean) rstd + bias.
  virtual void normalize(const Tensor& x, const Tensor& sums, std::int64_t columns,
                         const Tensor& gain, const Tensor& bias, double epsilon, const Tensor& y,
                         const Tensor& mean, const Tensor& rstd) const = 0;
  // With n = (x - mean) rstd and g = d_y gain: [2, rows] sums of g, of g n.
  virtual void slope_sums(const Tensor& x, const Tensor& gain, const Tensor& mean,
                          const Tensor& rstd, const Tensor& d_y, const Tensor& sums) const = 0;
  // d_x = rstd (g - mean(g) - n mean(g n)).
  virtual void slopes(const Tensor& x, const Tensor& gain, const Tensor& mean, const Tensor& rstd,
                      const Tensor& d_y, const Tensor& sums, std::int64_t columns,
                      const Tensor& d_x) const = 0;
};

namespace host {
std::unique_ptr<SplitNorm> make_split_norm(Device& device);
}
namespace cuda {
std::unique_ptr<SplitNorm> make_split_norm(Device& device);
}

// The device outlives it. Work is queued on the device's stream.
inline std::unique_ptr<SplitNorm> make_split_norm(Device& device) {
  return device.kind() == Device::Kind::host ? host::make_split_norm(device)
                                             : cuda::make_split_norm(device);
}

}  // namespace machine
