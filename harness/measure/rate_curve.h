#pragma once
// Rates by working set, as they are measured: at powers of two.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <vector>

namespace harness {

// Returns the measured sizes between which a working set lies: one or two.
inline std::vector<std::int64_t> sets_around(const auto& curve, double working_set_bytes) {
  std::vector<std::int64_t> sets;
  const auto above = curve.lower_bound(working_set_bytes);
  if (above != curve.begin()) sets.push_back(static_cast<std::int64_t>(std::prev(above)->first));
  if (above != curve.end()) sets.push_back(static_cast<std::int64_t>(above->first));
  return sets;
}

inline void raise(double& rate, double measured) { rate = std::max(rate, measured); }

// Returns the best rate of a set whose measured rate is `measured`. A part of it may be in a nearer
// cache, at the rate of a smaller set. Copies of the whole set in order find none of it there.
double with_nearer_cache(const auto& curve, double set, double measured) {
  double shortest = set / measured, best = measured;
  for (const auto& [part, rate] : curve) {
    if (part >= set) break;
    const double seconds = part / rate + (set - part) / measured;
    if (rate > measured && seconds < shortest) {
      shortest = seconds;
      best = set / seconds;
    }
  }
  return best;
}

// Returns the best rate of the set by the key's curve; 0: not measured.
double rate_at(const auto& curves, const auto& key, double working_set_bytes) {
  const auto found = curves.find(key);
  if (found == curves.end() || found->second.empty()) return 0;
  const auto& curve = found->second;
  const auto above = curve.lower_bound(working_set_bytes);
  if (above == curve.begin()) return above->second;
  double measured = curve.rbegin()->second;
  if (above != curve.end()) {
    const auto below = std::prev(above);
    const double place =
        std::log(working_set_bytes / below->first) / std::log(above->first / below->first);
    measured = below->second + place * (above->second - below->second);
  }
  return with_nearer_cache(curve, working_set_bytes, measured);
}

// A host copies a set by copying its halves one after the other, so one half is at least as fast.
// If it was measured slower, something disturbed it.
inline void raise_halves(std::vector<double>& rates) {  // of ascending sets
  for (std::size_t i = 0; i + 1 < rates.size(); ++i) raise(rates[i], rates[i + 1]);
}
void raise_half(auto& curve, double set) {
  const auto twice = curve.upper_bound(set);
  if (twice != curve.end()) raise(curve[set], twice->second);
}

}  // namespace harness
