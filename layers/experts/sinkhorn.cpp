#include "layers/experts/sinkhorn.h"

#include <algorithm>
#include <cmath>

namespace layers {

std::vector<double> sinkhorn(std::span<const double> logits, std::int64_t experts) {
  constexpr double tolerance = 1e-4, smallest = 1e-8;  // smallest: keeps a sum from being zero
  const auto columns = static_cast<std::size_t>(experts);
  const std::size_t tokens = logits.size() / columns;
  std::vector<double> scaled(logits.size());
  for (std::size_t t = 0; t < tokens; ++t) {
    const auto row = logits.subspan(t * columns, columns);
    const double largest = *std::ranges::max_element(row);  // cancels in the token's factor
    for (std::size_t e = 0; e < columns; ++e) scaled[t * columns + e] = std::exp(row[e] - largest);
  }
  std::vector<double> of_token(tokens, 1), of_expert(columns, 1), sums(columns);
  double change = tolerance + 1;
  while (change > tolerance) {
    std::ranges::fill(sums, 0);
    for (std::size_t t = 0; t < tokens; ++t) {
      double sum = 0;
      for (std::size_t e = 0; e < columns; ++e) sum += of_expert[e] * scaled[t * columns + e];
      of_token[t] = 1 / (static_cast<double>(tokens) * (sum + smallest));
      for (std::size_t e = 0; e < columns; ++e) sums[e] += of_token[t] * scaled[t * columns + e];
    }
    change = 0;
    for (std::size_t e = 0; e < columns; ++e) {
      const double before = of_expert[e];
      of_expert[e] = 1 / (static_cast<double>(experts) * (sums[e] + smallest));
      change += std::abs(of_expert[e] - before) / static_cast<double>(experts);
    }
  }
  for (std::size_t t = 0; t < tokens; ++t)
    for (std::size_t e = 0; e < columns; ++e) scaled[t * columns + e] *= of_token[t] * of_expert[e];
  return scaled;
}

}  // namespace layers
