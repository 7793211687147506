#include "harness/compare/rank_tests.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "machine/base/error.h"

namespace harness {
namespace {

// Returns the number of ways in which `chosen` of these values have each sum: [sum].
std::vector<double> ways_by_sum(const std::vector<int>& values, int chosen) {
  const auto largest = static_cast<std::size_t>(std::accumulate(values.begin(), values.end(), 0));
  std::vector<std::vector<double>> ways(static_cast<std::size_t>(chosen) + 1,
                                        std::vector<double>(largest + 1));
  ways[0][0] = 1;
  std::size_t reached = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<std::size_t>(values[i]);
    reached += value;
    for (std::size_t k = std::min<std::size_t>(static_cast<std::size_t>(chosen), i + 1); k > 0; --k)
      for (std::size_t sum = reached; sum >= value; --sum) ways[k][sum] += ways[k - 1][sum - value];
  }
  return ways.back();
}

struct Ranked {
  std::vector<int> twice;  // mid-ranks of all values, doubled, in ascending order of the values
  int twice_of_next = 0;   // their sum over `next`
  double ties = 0;         // sum of t^3 - t over groups of t equal values
};

Ranked rank(std::span<const double> base, std::span<const double> next) {
  std::vector<std::pair<double, bool>> all;
  for (const double value : base) all.emplace_back(value, false);
  for (const double value : next) all.emplace_back(value, true);
  std::ranges::sort(all);
  Ranked ranked;
  for (std::size_t first = 0, end = 0; first < all.size(); first = end) {
    while (end < all.size() && all[end].first == all[first].first) ++end;
    const double t = static_cast<double>(end - first);
    ranked.ties += t * t * t - t;
    const int twice = static_cast<int>(first + 1 + end);
    for (std::size_t i = first; i < end; ++i) {
      ranked.twice.push_back(twice);
      if (all[i].second) ranked.twice_of_next += twice;
    }
  }
  return ranked;
}

// x with P(Z > x) = tail of a normal Z, by bisection.
double normal_quantile_above(double tail) {
  double low = 0, high = 40;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(middle / std::sqrt(2.0)) / 2 > tail ? low : high) = middle;
  }
  return high;
}

// Returns the largest k with 2 P(U <= k - 1) <= level, U the number of pairs in the wrong order, or
// 0.
int critical_pairs(int n, int m, double level) {
  const double total = static_cast<double>(n) + m, pairs = static_cast<double>(n) * m;
  if (n + m > most_counted) {
    const double deviation = std::sqrt(pairs * (total + 1) / 12);
    const double k = pairs / 2 + 0.5 - normal_quantile_above(level / 2) * deviation;
    return std::max(0, static_cast<int>(std::floor(k)));
  }
  std::vector<int> ranks(static_cast<std::size_t>(n + m));
  std::iota(ranks.begin(), ranks.end(), 1);
  const std::vector<double> ways = ways_by_sum(ranks, m);
  const double all = std::accumulate(ways.begin(), ways.end(), 0.0);
  double below = 0;
  const int lowest = m * (m + 1) / 2;
  for (int k = 1;; ++k) {
    below += ways[static_cast<std::size_t>(lowest + k - 1)];
    if (2 * below > level * all) return k - 1;
  }
}

}  // namespace

MannWhitney mann_whitney(std::span<const double> base, std::span<const double> next) {
  const int n = static_cast<int>(base.size()), m = static_cast<int>(next.size()), all = n + m;
  if (n == 0 || m == 0) return {};
  const Ranked ranked = rank(base, next);
  const int mean = m * (all + 1);  // of twice_of_next
  const int off = std::abs(ranked.twice_of_next - mean);
  if (all <= most_counted) {
    const std::vector<double> ways = ways_by_sum(ranked.twice, m);
    double as_far = 0, total = 0;
    for (std::size_t sum = 0; sum < ways.size(); ++sum) {
      total += ways[sum];
      if (std::abs(static_cast<int>(sum) - mean) >= off) as_far += ways[sum];
    }
    return {as_far / total, true};
  }
  const double size = all;
  const double variance =
      static_cast<double>(n) * m / 12 * (size + 1 - ranked.ties / (size * (size - 1)));
  if (variance <= 0) return {1, false};  // all values are equal
  const double z = std::max(0.0, off / 2.0 - 0.5) / std::sqrt(variance);
  return {std::erfc(z / std::sqrt(2.0)), false};
}

double least_p(int n, int m) {
  double choices = 1;
  for (int i = 1; i <= std::min(n, m); ++i) choices = choices * (std::max(n, m) + i) / i;
  return std::min(1.0, 2 / choices);
}

int values_needed(double level) {
  SHARDMARK_CHECK(level, >, 0);
  int n = 1;
  while (least_p(n, n) > level) ++n;
  return n;
}

Shift::Shift(std::span<const double> base, std::span<const double> next)
    : base_(static_cast<int>(base.size())), next_(static_cast<int>(next.size())) {
  SHARDMARK_CHECK(base.size() * next.size(), >, 0u);
  differences_.reserve(base.size() * next.size());
  for (const double after : next)
    for (const double before : base) differences_.push_back(after - before);
  std::ranges::sort(differences_);
}

double Shift::estimate() const { return quantile(differences_, 0.5); }

std::optional<Interval> Shift::interval(double level) const {
  const int k = critical_pairs(base_, next_, level);
  if (k == 0) return std::nullopt;
  const auto place = static_cast<std::size_t>(k);
  return Interval{differences_[place - 1], differences_[differences_.size() - place]};
}

std::vector<double> benjamini_hochberg(std::span<const double> p) {
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return p[i]; });
  std::vector<double> adjusted(p.size());
  double least = 1;
  for (std::size_t rank = p.size(); rank > 0; --rank) {
    const std::size_t i = order[rank - 1];
    least = std::min(least, p[i] * static_cast<double>(p.size()) / static_cast<double>(rank));
    adjusted[i] = least;
  }
  return adjusted;
}

}  // namespace harness
