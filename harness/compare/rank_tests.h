#pragma once
// Two small samples against each other, with no distribution assumed: is one larger, by how much,
// and what is left of that when many pairs are tested at once.
//
// Mann and Whitney 1947, doi:10.1214/aoms/1177730491. Hodges and Lehmann 1963,
// doi:10.1214/aoms/1177704172. Benjamini and Hochberg 1995, doi:10.1111/j.2517-6161.1995.tb02031.x.

#include <optional>
#include <span>
#include <vector>

#include "harness/measure/statistics.h"

namespace harness {

// Up to so many values in both samples together every choice is counted: the largest of the
// counts, C(56, 28), is the last that a double holds as an integer.
inline constexpr int most_counted = 56;

struct MannWhitney {
  double p = 1;       // two-sided
  bool exact = true;  // false: normal approximation, corrected for ties and for continuity
};
// p is the share of the C(n + m, m) ways to choose m of all values whose sum of mid-ranks lies as
// far from its mean as that of `next`, so ties count as what they are. 1 when either is empty.
MannWhitney mann_whitney(std::span<const double> base, std::span<const double> next);

// The least p that n against m values can have: all of one below all of the other, 2 / C(n + m, m).
double least_p(int n, int m);
// Values a side, as many on both, of which the least p is at most this level.
int values_needed(double level);

// By how much `next` lies above `base`.
class Shift {
 public:
  // At least one value in each.
  Shift(std::span<const double> base, std::span<const double> next);
  // Hodges and Lehmann's estimate: the median of all differences next[j] - base[i].
  double estimate() const;
  // All shifts that mann_whitney would not reject at this level: between two order statistics of
  // the differences. With ties it covers at least as often. None when no data of these sizes could
  // be rejected.
  std::optional<Interval> interval(double level) const;

 private:
  int base_, next_;
  std::vector<double> differences_;  // ascending
};

// Each p times tests / its rank among them, never below that of a smaller p: what is at most q is
// rejected with a false discovery rate of q.
std::vector<double> benjamini_hochberg(std::span<const double> p);

}  // namespace harness
