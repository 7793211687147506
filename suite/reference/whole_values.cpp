#include "suite/reference/whole_values.h"

#include <cmath>
#include <cstdint>

namespace suite {

double norm(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares);
}

void append(std::vector<double>& to, const machine::Tensor& from) {
  const std::vector<double> values = to_doubles(from);
  to.insert(to.end(), values.begin(), values.end());
}

std::vector<double> shard(const std::vector<double>& whole, const collectives::Parameter& parameter,
                          int tp_rank) {
  const machine::Region region = parameter.region(tp_rank);
  if (const auto& block = parameter.placement.block; block && block->transposed) {
    std::vector<double> part;
    for (std::int64_t col = 0; col < block->cols; ++col)
      for (std::int64_t row = 0; row < block->rows; ++row)
        part.push_back(whole[static_cast<std::size_t>((region.row + row) * region.global_cols +
                                                      region.col + col)]);
    return part;
  }
  const std::int64_t rows = parameter.value.shape().rank() == 1 ? 1 : parameter.value.rows();
  std::vector<double> part;
  part.reserve(static_cast<std::size_t>(parameter.value.size()));
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto begin = whole.begin() + (region.row + row) * region.global_cols + region.col;
    part.insert(part.end(), begin, begin + parameter.value.cols());
  }
  return part;
}

}  // namespace suite
