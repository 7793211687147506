#pragma once
// The slow pairs of a link matrix. The time of a slow pair, for a small message or for a byte, is
// far above that of the others of its kind, by median and MAD (harness/measure/statistics.h), also
// in its fastest pass: other work disturbs some passes, a slow link is slow in all. Pairs within a
// host and pairs between hosts are different kinds, and are not compared. Pairs with a rank on a
// crowded host, where ranks wait for their cores, are separate kinds: only their bandwidth is
// compared, with a wide tolerance.

#include <string>
#include <vector>

#include "harness/record/record.h"

namespace suite {

// As a fraction of the median: smaller differences count as equal, so that a slow pair differs by
// at least 3.5 times this.
inline constexpr double least_spread = 0.1;
// The same on crowded hosts, for the fastest passes: eight times as long.
inline constexpr double crowded_spread = 2;
// The fraction of a rank's measured time in which its core may run other work.
inline constexpr double crowded_delay = 0.05;

// Crowded hosts, in order of their first rank: the ranks may use fewer cores than there are ranks,
// or a rank had to wait for its core, because of other work or of ranks under another host name.
// cores and delayed (fraction of the time; empty: none) are by rank. Two ranks bound to one core
// while other cores are idle do not make a host crowded: their pair is reported.
std::vector<std::string> crowded_hosts(const std::vector<std::string>& hosts,
                                       const std::vector<std::vector<int>>& cores,
                                       const std::vector<double>& delayed = {});

// The values of the matrix in the fastest pass of each pair.
struct FastestPass {
  std::vector<double> bandwidth_GBps, latency_us;
};

// The worst first.
std::vector<harness::LinkMatrix::SlowPair> slow_pairs(const harness::LinkMatrix& matrix,
                                                      const FastestPass& fastest);

}  // namespace suite
