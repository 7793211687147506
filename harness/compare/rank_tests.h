#pragma once
// Compares two small samples of any distribution: whether one is larger, by how much, and the
// correction for many tests.
//
// Mann and Whitney 1947, doi:10.1214/aoms/1177730491. Hodges and Lehmann 1963,
// doi:10.1214/aoms/1177704172. Benjamini and Hochberg 1995, doi:10.1111/j.2517-6161.1995.tb02031.x.

#include <optional>
#include <span>
#include <vector>

#include "harness/measure/statistics.h"

namespace harness {

// Up to this many values in both samples every choice is counted. C(56, 28) is the largest such
// count that a double represents exactly.
inline constexpr int most_counted = 56;

struct MannWhitney {
  double p = 1;       // two-sided
  bool exact = true;  // false: normal approximation, corrected for ties and for continuity
};
// p is the fraction of the C(n + m, m) choices of m values whose sum of mid-ranks is at least as
// far from its mean as that of `next`, so ties are exact. 1 if either is empty.
MannWhitney mann_whitney(std::span<const double> base, std::span<const double> next);

// Returns the least p of n and m values: all of one below all of the other, 2 / C(n + m, m).
double least_p(int n, int m);
// Returns the number of values per side whose least p is at most this level.
int values_needed(double level);

// The shift of `next` from `base`.
class Shift {
 public:
  // Each sample must have at least one value.
  Shift(std::span<const double> base, std::span<const double> next);
  // Hodges and Lehmann's estimate: the median of all differences next[j] - base[i].
  double estimate() const;
  // Returns the shifts that mann_whitney would not reject at this level: between two order
  // statistics of the differences. Conservative with ties. Empty if samples of these sizes can
  // never be rejected.
  std::optional<Interval> interval(double level) const;

 private:
  int base_, next_;
  std::vector<double> differences_;  // ascending
};

// Returns each p times tests / its rank, never below that of a smaller p. Rejecting values up to q
// gives a false discovery rate of q.
std::vector<double> benjamini_hochberg(std::span<const double> p);

}  // namespace harness
