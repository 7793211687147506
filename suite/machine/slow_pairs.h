#pragma once
// Which pairs of a link matrix stand out: whose time, of a small message or of a byte, lies far
// above that of the others of its kind, by median and MAD (harness/measure/statistics.h), in its
// fastest pass too: other work disturbs some passes, a link that is slow is slow in all. Pairs
// within a host and pairs between hosts are of different kinds, and are not held against each
// other. Pairs with a rank on a crowded host, where ranks wait for their cores, are kinds of their
// own: only of their bandwidth, and only far apart.

#include <string>
#include <vector>

#include "harness/record/record.h"

namespace suite {

// In parts of the median: pairs nearer together than this count as equal, so that nothing less
// than 3.5 times as far off is ever slow.
inline constexpr double least_spread = 0.1;
// The same on crowded hosts, of the fastest passes: eight times as long.
inline constexpr double crowded_spread = 2;
// Of the time in which a rank meets others, what its core may run something else.
inline constexpr double crowded_delay = 0.05;

// Hosts, in order of their first rank, whose ranks together may use fewer cores than they are, or
// one of whose ranks was kept from its core, be it by other work or by ranks of what only bears
// another host's name. cores, and delayed (fraction of the time; empty: none): of each rank. Two
// ranks bound to one core while others lie idle do not make a host crowded: their pair is to stand
// out.
std::vector<std::string> crowded_hosts(const std::vector<std::string>& hosts,
                                       const std::vector<std::vector<int>>& cores,
                                       const std::vector<double>& delayed = {});

// Of every pair what the matrix has, in its fastest pass.
struct FastestPass {
  std::vector<double> bandwidth_GBps, latency_us;
};

// The worst first.
std::vector<harness::LinkMatrix::SlowPair> slow_pairs(const harness::LinkMatrix& matrix,
                                                      const FastestPass& fastest);

}  // namespace suite
