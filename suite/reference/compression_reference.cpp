#include "suite/reference/compression_reference.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "machine/device/dtype.h"

namespace suite {

std::vector<double> kept_by_top_k(const std::vector<double>& values, std::int64_t k) {
  k = std::min(k, std::ssize(values));
  if (k == 0) return values;
  std::vector<double> magnitudes;
  magnitudes.reserve(values.size());
  for (const double value : values) magnitudes.push_back(std::abs(value));
  std::nth_element(magnitudes.begin(), magnitudes.begin() + (k - 1), magnitudes.end(),
                   std::greater<>());
  const double least = magnitudes[static_cast<std::size_t>(k - 1)];
  std::int64_t equal_sent =
      k - std::ranges::count_if(values, [&](double value) { return std::abs(value) > least; });
  std::vector<double> kept = values;
  for (double& value : kept)
    if (std::abs(value) > least || (std::abs(value) == least && equal_sent-- > 0)) value = 0;
  return kept;
}

std::vector<double> kept_by_deviation(const std::vector<double>& values, double deviations) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  const auto least =
      static_cast<float>(deviations * std::sqrt(squares / static_cast<double>(values.size())));
  std::vector<double> kept = values;
  for (double& value : kept)
    if (least > 0 && std::abs(value) >= static_cast<double>(least)) value = 0;
  return kept;
}

void add_code_errors(std::string_view algorithm, std::int64_t shares,
                     const std::vector<double>& magnitudes, std::vector<double>& error) {
  constexpr double u = 0x1p-24;
  const std::size_t size = magnitudes.size();
  if (algorithm.ends_with("_wire")) {
    const bool half = algorithm == "half_wire";
    const double roundoff =
        unit_roundoff(half ? machine::Dtype::float16 : machine::Dtype::bfloat16);
    for (std::size_t i = 0; i < size; ++i)
      error[i] += std::max(roundoff * magnitudes[i], half ? 0x1p-25 : 0x1p-134);
    return;
  }
  const auto share =
      (size + static_cast<std::size_t>(shares) - 1) / static_cast<std::size_t>(shares);
  if (algorithm == "one_bit") {  // | |value| - scale | is at most the larger of the two
    for (std::size_t begin = 0, stop = 0; begin < size; begin = stop) {
      stop = std::min(size, begin + share);
      double squares = 0;
      for (std::size_t i = begin; i < stop; ++i) squares += magnitudes[i] * magnitudes[i];
      const double scale = std::sqrt(squares / static_cast<double>(stop - begin));
      for (std::size_t i = begin; i < stop; ++i)
        error[i] += std::max(magnitudes[i], scale) * (1 + 4 * u);
    }
    return;
  }
  const int levels = algorithm.ends_with("_int4") ? 7 : 127;
  for (std::size_t begin = 0, stop = 0; begin < size; begin = stop) {
    stop = std::min({size, begin + 256, (begin / share + 1) * share});
    double largest = 0;
    for (std::size_t i = begin; i < stop; ++i) largest = std::max(largest, magnitudes[i]);
    for (std::size_t i = begin; i < stop; ++i)
      error[i] +=
          std::max(largest / levels * (0.5 + levels * 4 * u), largest < 0x1p-119 ? largest : 0);
  }
}

}  // namespace suite
