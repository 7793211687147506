#include "harness/history/change_points.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

namespace harness {
namespace {

constexpr int shuffles = 1999;

// Doubled mid-ranks less their mean, so that they sum to nothing.
std::vector<std::int64_t> centred_ranks(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::ranges::sort(sorted);
  std::vector<std::int64_t> ranks;
  for (const double value : values) {
    const auto [first, last] = std::ranges::equal_range(sorted, value);
    const std::int64_t twice = (first - sorted.begin()) + 1 + (last - sorted.begin());
    ranks.push_back(twice - static_cast<std::int64_t>(values.size()) - 1);
  }
  return ranks;
}

struct Cut {
  std::size_t at = 0;  // the first value after it
  std::int64_t difference = 0;
};

Cut largest_cut(const std::vector<std::int64_t>& ranks) {
  Cut best;
  std::int64_t sum = 0;
  for (std::size_t i = 0; i + 1 < ranks.size(); ++i) {
    sum += ranks[i];
    if (std::abs(sum) > best.difference) best = {i + 1, std::abs(sum)};
  }
  return best;
}

void find(std::span<const double> values, std::size_t offset, double level,
          std::vector<std::size_t>& found) {
  if (values.size() < 4) return;
  std::vector<std::int64_t> ranks = centred_ranks(values);
  const Cut cut = largest_cut(ranks);
  if (cut.difference == 0) return;  // all are equal
  std::mt19937_64 engine(20240701);
  int as_large = 1;  // the series itself is one of its orders
  for (int i = 0; i < shuffles; ++i) {
    std::shuffle(ranks.begin(), ranks.end(), engine);
    as_large += largest_cut(ranks).difference >= cut.difference;
  }
  if (as_large > level * (shuffles + 1)) return;
  find(values.first(cut.at), offset, level, found);
  found.push_back(offset + cut.at);
  find(values.subspan(cut.at), offset + cut.at, level, found);
}

}  // namespace

std::vector<std::size_t> change_points(std::span<const double> values, double level) {
  std::vector<std::size_t> found;
  find(values, 0, level, found);
  return found;
}

}  // namespace harness
