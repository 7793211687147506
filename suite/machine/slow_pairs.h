#pragma once
// The slow pairs of a link matrix. The time of a slow pair, for a small message or for a byte, is
// far above that of the other pairs of its kind, also in its fastest pass. The comparison uses
// median and MAD (harness/measure/statistics.h). Other work disturbs some passes, but a slow link
// is slow in all. Pairs within a host and pairs between hosts are different kinds, which are not
// compared. On a crowded host, ranks wait for their cores. Pairs with a rank on such a host are
// separate kinds. Only their bandwidth is compared, with a wide tolerance.

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "harness/measure/statistics.h"
#include "harness/record/record.h"

namespace suite {

// Smallest relevant difference, as a fraction of the median. A slow pair differs by at least 3.5
// times this.
inline constexpr double least_spread = 0.1;
// As least_spread, for the fastest passes of pairs on crowded hosts: a slow pair takes eight times
// as long.
inline constexpr double crowded_spread = 2;
// The fraction of a rank's measured time in which its core may run other work.
inline constexpr double crowded_delay = 0.05;

// Returns the crowded hosts, in order of their first rank. On a crowded host the ranks may use
// fewer cores than there are ranks, or a rank had to wait for its core, because of other work or of
// ranks under another host name. cores and delayed (a fraction of the time; empty: no delays) have
// one entry per rank. Two ranks bound to one core while other cores are idle do not make a host
// crowded: their pair is reported.
inline std::vector<std::string> crowded_hosts(const std::vector<std::string>& hosts,
                                              const std::vector<std::vector<int>>& cores,
                                              const std::vector<double>& delayed = {}) {
  std::vector<std::string> crowded;
  for (const std::string& host : hosts) {
    std::size_t ranks = 0;
    bool kept_waiting = false;
    std::set<int> usable;
    for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
      if (hosts[rank] != host) continue;
      ++ranks;
      usable.insert(cores[rank].begin(), cores[rank].end());
      kept_waiting = kept_waiting || (!delayed.empty() && delayed[rank] > crowded_delay);
    }
    if ((ranks > usable.size() || kept_waiting) && std::ranges::count(crowded, host) == 0)
      crowded.push_back(host);
  }
  return crowded;
}

// The values of the matrix in the fastest pass of each pair.
struct FastestPass {
  std::vector<double> bandwidth_GBps, latency_us;
};

// Returns the slow pairs, the slowest first.
inline std::vector<harness::LinkMatrix::SlowPair> slow_pairs(const harness::LinkMatrix& matrix,
                                                             const FastestPass& fastest) {
  std::vector<harness::LinkMatrix::SlowPair> slow;
  const auto host = [&](int rank) { return matrix.hosts[static_cast<std::size_t>(rank)]; };
  const auto crowded = [&](int rank) {
    return std::ranges::count(matrix.crowded_hosts, host(rank)) > 0;
  };
  // Adds the slow pairs of one kind, by one metric.
  const auto add = [&](const char* metric, const std::vector<double>& medians,
                       const std::vector<double>& shortest, const auto& time_of, bool within_host,
                       bool on_crowded) {
    std::vector<harness::LinkMatrix::SlowPair> pairs;
    std::vector<double> times, shortest_times, values;
    const int ranks = matrix.ranks();
    for (int from = 0; from < ranks; ++from)
      for (int to = 0; to < ranks; ++to) {
        const auto place = static_cast<std::size_t>(from * ranks + to);
        if (from == to || (host(from) == host(to)) != within_host || !(medians[place] > 0))
          continue;
        if ((crowded(from) || crowded(to)) != on_crowded) continue;
        pairs.push_back({from, to, metric, shortest[place], 0, 0});
        values.push_back(medians[place]);
        times.push_back(time_of(medians[place]));
        shortest_times.push_back(time_of(shortest[place]));
      }
    const std::vector<double> z =
        harness::robust_z(shortest_times, times, on_crowded ? crowded_spread : least_spread);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      if (z[i] <= harness::outlying_z) continue;
      pairs[i].typical = harness::median(values);
      pairs[i].z = z[i];
      slow.push_back(pairs[i]);
    }
  };
  // Rates are compared as times, because even the rate of a slow pair is not far below the others.
  const auto seconds_per_GB = [](double rate) { return 1 / rate; };
  for (const bool within_host : {true, false})
    for (const bool on_crowded : {false, true})
      add("bandwidth", matrix.bandwidth_GBps, fastest.bandwidth_GBps, seconds_per_GB, within_host,
          on_crowded);
  for (const bool within_host : {true, false})
    add("latency", matrix.latency_us, fastest.latency_us, std::identity(), within_host, false);
  std::ranges::stable_sort(slow, std::greater{}, &harness::LinkMatrix::SlowPair::z);
  return slow;
}

}  // namespace suite
