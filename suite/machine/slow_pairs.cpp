#include "suite/machine/slow_pairs.h"

#include <algorithm>
#include <functional>
#include <set>

#include "harness/measure/statistics.h"

namespace suite {

namespace {

struct Metric {
  std::string name;
  const std::vector<double>&values, &fastest;
  double (*time_of)(double value);
};

// Appends the slow pairs of one kind, by one metric.
void add_slow(const harness::LinkMatrix& matrix, const Metric& metric, bool within_host,
              bool on_crowded, std::vector<harness::LinkMatrix::SlowPair>& slow) {
  const auto host = [&](int rank) { return matrix.hosts[static_cast<std::size_t>(rank)]; };
  const auto crowded = [&](int rank) {
    return std::ranges::count(matrix.crowded_hosts, host(rank)) > 0;
  };
  std::vector<harness::LinkMatrix::SlowPair> pairs;
  std::vector<double> times, shortest, values;
  const int ranks = matrix.ranks();
  for (int from = 0; from < ranks; ++from)
    for (int to = 0; to < ranks; ++to) {
      const auto place = static_cast<std::size_t>(from * ranks + to);
      const double value = metric.values[place], fastest = metric.fastest[place];
      if (from == to || (host(from) == host(to)) != within_host || !(value > 0)) continue;
      if ((crowded(from) || crowded(to)) != on_crowded) continue;
      pairs.push_back({from, to, metric.name, fastest, 0, 0});
      values.push_back(value);
      times.push_back(metric.time_of(value));
      shortest.push_back(metric.time_of(fastest));
    }
  const std::vector<double> z =
      harness::robust_z(shortest, times, on_crowded ? crowded_spread : least_spread);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (z[i] <= harness::outlying_z) continue;
    pairs[i].typical = harness::median(values);
    pairs[i].z = z[i];
    slow.push_back(pairs[i]);
  }
}

}  // namespace

std::vector<std::string> crowded_hosts(const std::vector<std::string>& hosts,
                                       const std::vector<std::vector<int>>& cores,
                                       const std::vector<double>& delayed) {
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

std::vector<harness::LinkMatrix::SlowPair> slow_pairs(const harness::LinkMatrix& matrix,
                                                      const FastestPass& fastest) {
  // Rates are compared as times, because no rate is far below the others, even of a slow pair.
  const Metric metrics[] = {
      {"bandwidth", matrix.bandwidth_GBps, fastest.bandwidth_GBps,
       [](double rate) { return 1 / rate; }},
      {"latency", matrix.latency_us, fastest.latency_us, [](double time) { return time; }}};
  std::vector<harness::LinkMatrix::SlowPair> slow;
  for (const Metric& metric : metrics)
    for (const bool within_host : {true, false}) {
      add_slow(matrix, metric, within_host, false, slow);
      if (metric.name == "bandwidth") add_slow(matrix, metric, within_host, true, slow);
    }
  std::ranges::stable_sort(slow, std::greater{}, &harness::LinkMatrix::SlowPair::z);
  return slow;
}

}  // namespace suite
