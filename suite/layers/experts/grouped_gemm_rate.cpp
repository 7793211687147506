#include "suite/layers/experts/grouped_gemm_rate.h"

#include <algorithm>
#include <functional>

#include "harness/measure/statistics.h"
#include "layers/experts/grouped_gemm.h"
#include "machine/base/clock.h"

namespace suite {

double grouped_gemm_over_gemm(const machine::Tensor& x, std::span<const std::int64_t> rows,
                              std::span<const machine::Matrix> weights) {
  constexpr int rounds = 15;
  constexpr double least_s = 1e-3;  // of a measurement
  machine::Stream& stream = x.device().stream();
  const std::int64_t columns = weights.front().cols;
  const machine::Tensor out(x.device(), x.dtype(), {x.rows(), columns}, machine::Category::buffers);
  int times = 1;
  const auto seconds_of = [&](const std::function<void()>& product) {
    const double begin = machine::steady_s();
    for (int i = 0; i < times; ++i) product();
    stream.synchronize();
    return machine::steady_s() - begin;
  };
  const std::function<void()> grouped = [&] {
    layers::grouped_gemm(stream, matrix(x), rows, weights, matrix(out));
  };
  const std::function<void()> one = [&] { gemm(stream, matrix(x), weights[0], matrix(out)); };
  grouped();  // makes what the library keeps for each shape
  one();
  times = static_cast<int>(std::clamp(least_s / seconds_of(grouped), 1.0, 1e4));
  std::vector<double> ratios;
  for (int round = 0; round < rounds; ++round) {
    const double of_one = seconds_of(one);
    ratios.push_back(of_one / seconds_of(grouped));
  }
  return harness::median(ratios);
}

}  // namespace suite
