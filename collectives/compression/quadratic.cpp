#include "collectives/compression/quadratic.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

namespace collectives {

using machine::Dtype;
using machine::Tensor;

namespace quadratic {
namespace {

constexpr double largest_target = 4;
constexpr double dispute = 6;  // above 5/4 * largest_target, the largest gradient of the others

using Vector = std::array<double, size>;

double target(std::int64_t i) { return largest_target * (i % 2 == 0 ? 1 : -1) * (i + 1.0) / size; }

double curvature(int rank, std::int64_t i) { return (rank + i) % 2 == 0 ? 1.25 : 0.75; }

// + and - in turn. For an odd number of ranks the last three are +, + and twice -.
double tilt(int rank, int ranks, std::int64_t i) {
  if (i >= disputed || ranks == 1) return 0;
  if (ranks % 2 == 1 && rank >= ranks - 3) return rank == ranks - 1 ? -2 * dispute : dispute;
  return rank % 2 == 0 ? dispute : -dispute;
}

double step(int t) { return 2.0 / (t + 4); }

double norm(std::span<const double> values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

}  // namespace

CompressionOptions options(int ranks, bool feedback) {
  double largest = 1.25 * largest_target;
  for (int rank = 0; rank < ranks; ++rank)
    largest = std::max(largest, std::abs(tilt(rank, ranks, 0)) + 1.25 * largest_target);
  return {.k = disputed,
          .threshold = static_cast<float>(largest),
          .deviations = 1,
          .feedback = feedback};
}

}  // namespace quadratic

Descent descend(machine::Device& device, Communicator& communicator,
                CompressedAllReduce& compressed) {
  using namespace quadratic;
  const int rank = communicator.rank(), ranks = communicator.size();
  const auto buffer = [&](Dtype dtype, std::int64_t elements) {
    return Tensor(device, dtype, {elements}, machine::Category::buffers);
  };
  const Tensor gradient = buffer(Dtype::float32, size), sum = buffer(Dtype::float32, size);
  const Tensor shared =
      buffer(Dtype::float64, 2 * size);  // held back; magnitudes that were rounded

  double least = 1e300, most = 0;  // of the mean's curvature
  for (std::int64_t i = 0; i < size; ++i) {
    double mean = 0;
    for (int r = 0; r < ranks; ++r) mean += curvature(r, i) / ranks;
    least = std::min(least, mean);
    most = std::max(most, mean);
  }

  Vector x{};
  const auto distance = [&] {
    Vector difference;
    for (std::int64_t i = 0; i < size; ++i) difference[i] = x[i] - target(i);
    return norm(difference);
  };
  Descent descent;
  descent.start = distance();
  for (std::int64_t i = disputed; i < size; ++i)
    descent.unmoved = std::hypot(descent.unmoved, target(i));

  compressed.reset();
  std::vector<double> held(size, 0.0);
  double virtual_error = descent.start, held_norm = 0;
  for (int t = 0; t < steps; ++t) {
    std::vector<double> gradients(size), totals(2 * size);
    for (std::int64_t i = 0; i < size; ++i) {
      const double g = curvature(rank, i) * (x[i] - target(i)) + tilt(rank, ranks, i);
      gradients[i] = g;
      totals[size + i] = std::abs(g) + std::abs(held[i]);
    }
    machine::from_doubles(gradient, gradients);
    compressed.run(gradient, sum);
    const std::vector<double> sums = to_doubles(sum);
    held = compressed.held_back();
    for (std::int64_t i = 0; i < size; ++i) {
      totals[i] = held[i];
      totals[size + i] += std::abs(totals[i]);
      x[i] -= step(t) / ranks * sums[i];
    }
    machine::from_doubles(shared, totals);
    communicator.all_reduce(shared);
    totals = to_doubles(shared);

    // Each rank rounds its gradient, in + residual, and the subtraction of the sent value. The sum
    // has N - 1 additions and at most four more roundings. No number exceeds these magnitudes.
    const double rounding = (ranks + 8) * 0x1p-24 * norm(std::span(totals).subspan(size));
    const double held_next = norm(std::span(totals).first(size));
    const double shrink = std::max(std::abs(1 - step(t) * least), std::abs(1 - step(t) * most));
    virtual_error =
        shrink * virtual_error + (step(t) * step(t) * most * held_norm +
                                  (step(t) - step(t + 1)) * held_next + step(t) * rounding) /
                                     ranks;
    held_norm = held_next;
    descent.errors.push_back(distance());
  }
  descent.error = descent.errors.back();
  descent.bound = virtual_error + step(steps) / ranks * held_norm;
  return descent;
}

}  // namespace collectives
