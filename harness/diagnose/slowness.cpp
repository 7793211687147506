// Finds slow parts by one run: links, ranks, cores, disks, and whole units.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "harness/diagnose/findings.h"
#include "harness/measure/statistics.h"
#include "harness/record/summary.h"

namespace harness {
namespace {

// Relevant slowdowns, and how often they must occur. A rank is compared with the others in cases in
// which all do the same work.
constexpr double slow_ratio = 1.25,
                 slow_s = 1e-3;           // minimum ratio of busy times; minimum busy time
constexpr double series_s = 10e-3;        // minimum of all runs, if a device timed them
constexpr double shared_fraction = 0.25;  // fraction of time in which its core ran something else
constexpr double turn_s = 3e-3;           // time slice of a process on a core
constexpr double busy_fraction = 0.2;     // above this delay, a rank's speed is inconclusive
constexpr std::size_t least_cases = 6;
constexpr std::size_t enough_ranks = 5;  // minimum to estimate their spread
constexpr double most_of_them = 0.8;
constexpr double chance = 1e-5;
// If ranks wait for their cores, the fastest passes of similar pairs differ up to sevenfold.
constexpr double crowded_passes = 5, crowded_factor = 8;
constexpr double pair_factor = 1.5, pair_factor_once = 3;  // slower than typical pairs

// The fraction of its limit that at least one of a unit's cases of a kind (kind_of_case)
// should reach, if the limit is long enough: at most a third of the usual fraction.
const std::map<std::string, double, std::less<>> limit_floors{
    {"computation", 0.15}, {"bandwidth", 0.1}, {"message", 0.03}};
constexpr double long_limit_s = 1e-4;

// Values by rank; empty if the record has no such values.
std::vector<double> by_rank(const Record& record, std::string_view name) {
  std::vector<double> values;
  while (true) {
    const auto found = record.counters.find(fmt::format("{}/rank:{}", name, values.size()));
    if (found == record.counters.end()) return values;
    values.push_back(found->second);
  }
}

// Returns whether the time is that of events of a device: then a rank's busy time is that of its
// device.
bool is_timed_by_device(const Record& record) {
  const double device = counter(record, "device_s");
  return device > 0 && std::abs(record.seconds - device) <= 1e-6 * device;
}

std::vector<double> others_of(std::vector<double> values, std::size_t index) {
  values.erase(values.begin() + static_cast<std::ptrdiff_t>(index));
  return values;
}

// P(X >= count) for X ~ Binomial(n, p).
double at_least(int count, int n, double p) {
  double sum = 0;
  for (int k = count; k <= n; ++k)
    sum += std::exp(std::lgamma(n + 1.0) - std::lgamma(k + 1.0) - std::lgamma(n - k + 1.0) +
                    k * std::log(p) + (n - k) * std::log1p(-p));
  return sum;
}

struct Slow {
  int seen = 0;
  double factor = 0;  // the largest
  std::string text;
};
bool certain(const Slow& slow, int matrices) {
  return 2 * slow.seen > matrices &&
         (slow.factor >= pair_factor_once || (slow.factor >= pair_factor && slow.seen > 1));
}

void see(Slow& slow, double factor, const auto& text) {
  if (factor < pair_factor) return;
  ++slow.seen;
  if (factor <= slow.factor) return;
  slow.factor = factor;
  slow.text = text();
}

// Returns the ranks of each host, or with one host, each rank.
std::vector<std::vector<int>> ends_of(const LinkMatrix& matrix) {
  std::map<std::string, std::vector<int>> hosts;
  for (int rank = 0; rank < matrix.ranks(); ++rank)
    hosts[matrix.hosts[static_cast<std::size_t>(rank)]].push_back(rank);
  std::vector<std::vector<int>> ends;
  for (const auto& [host, ranks] : hosts) ends.push_back(ranks);
  if (ends.size() == 1 && matrix.crowded_hosts.empty())
    for (ends.clear(); static_cast<int>(ends.size()) < matrix.ranks();)
      ends.push_back({static_cast<int>(ends.size())});
  return ends;
}

// Returns the best bandwidth of an end with any other, in the slower direction. It is low if the
// end's own network link is slow, for any number of affected pairs.
double best_of(const LinkMatrix& matrix, const std::vector<int>& end) {
  double best = 0;
  for (const int here : end)
    for (int there = 0; there < matrix.ranks(); ++there)
      if (std::ranges::find(end, there) == end.end()) {
        const auto at = [&](int from, int to) {
          return matrix.bandwidth_GBps[static_cast<std::size_t>(from * matrix.ranks() + to)];
        };
        best = std::max(best, std::min(at(here, there), at(there, here)));
      }
  return best;
}

void slow_links(const RunFile& run, Findings& findings) {
  std::map<std::vector<int>, Slow> ends;
  std::map<std::pair<int, int>, Slow> pairs;
  int matrices = 0;
  for (const Record& record : run.records) {
    const LinkMatrix& matrix = record.link_matrix;
    if (matrix.ranks() < 3) continue;
    // Crowded hosts need several passes, of which the fastest counts.
    const double passes = counter(record, "samples", crowded_passes);
    if (!matrix.crowded_hosts.empty() && passes < crowded_passes) continue;
    ++matrices;
    std::vector<double> bests;
    const std::vector<std::vector<int>> all = ends_of(matrix);
    for (const std::vector<int>& end : all) bests.push_back(best_of(matrix, end));
    for (std::size_t i = 0; all.size() > 2 && i < all.size(); ++i) {
      const double typical = median(others_of(bests, i));
      const double factor = typical / std::max(bests[i], 1e-12);
      if (!matrix.crowded_hosts.empty() && factor < crowded_factor) continue;
      see(ends[all[i]], factor, [&] {
        return fmt::format("its best pair reaches {:.3g} GB/s, the others' {:.3g} (median); {}",
                           bests[i], typical, record.name);
      });
    }
    std::map<std::pair<int, int>, LinkMatrix::SlowPair> here;  // the first is the worst
    for (const LinkMatrix::SlowPair& pair : matrix.slow_pairs)
      here.try_emplace(std::minmax(pair.from, pair.to), pair);
    for (const auto& [link, pair] : here)
      see(pairs[link],
          pair.metric == "bandwidth" ? pair.typical / pair.value : pair.value / pair.typical,
          [&] { return fmt::format("{}; {}", pair_text(matrix, pair), record.name); });
  }
  std::set<int> named;
  for (const auto& [end, slow] : ends) {
    if (!certain(slow, matrices)) continue;
    named.insert(end.begin(), end.end());
    findings.add(Level::warning, "slow link", end, slow.text);
  }
  for (const auto& [link, slow] : pairs) {
    if (named.contains(link.first) || named.contains(link.second)) continue;
    const bool sure = certain(slow, matrices);
    findings.add(sure ? Level::warning : Level::ok, sure ? "slow link" : "inconclusive",
                 sure ? std::vector{link.first, link.second} : std::vector<int>{},
                 fmt::format("in {} of {} matrices; {}", slow.seen, matrices, slow.text));
  }
}

// Finds ranks that are late or compute slowly: busy while the others wait, or busy for longer. A
// device's clock has no part of the host's delays, and its runs follow each other, so their sum
// must be long, not each of them.
void slow_ranks(const RunFile& run, Findings& findings) {
  struct Seen {
    std::vector<double> ratios;        // to the other ranks, in all cases that can show slowness
    std::vector<double> slow, shared;  // in cases in which it was slow; with a shared core
    std::size_t able_to_share = 0;     // cases that can show a shared core
    std::string example;
  };
  std::map<std::pair<int, bool>, Seen> seen;  // by rank and uses_disk
  std::vector<double> delays;
  for (const Record& record : run.records) {
    const std::vector<double> busy = by_rank(record, "busy_s");
    const std::vector<double> delayed = by_rank(record, "delayed_fraction");
    const std::vector<double> delay = by_rank(record, "delayed_s");
    if (busy.size() < 2 || busy.size() != delay.size() || !record.traits ||
        !record.traits->equal_work)
      continue;
    const bool by_device = is_timed_by_device(record);
    for (std::size_t rank = 0; rank < busy.size(); ++rank) {
      Seen& its = seen[{static_cast<int>(rank), record.traits->uses_disk}];
      delays.push_back(delayed[rank]);
      // A case shorter than one time slice cannot show a shared core.
      const bool long_enough =
          busy[rank] * counter(record, "samples") * counter(record, "batch", 1) >= turn_s;
      its.able_to_share += long_enough;
      if (long_enough && delayed[rank] >= shared_fraction &&
          delayed[rank] >= 2.5 * std::max(0.05, median(others_of(delayed, rank))))
        its.shared.push_back(delayed[rank]);
      const double others = median(others_of(busy, rank));
      const double runs = by_device ? counter(record, "samples") * counter(record, "batch", 1) : 1;
      if (runs * std::max(busy[rank], others) < (by_device ? series_s : slow_s)) continue;
      // Without the time of other work on its core.
      const double own = by_device ? busy[rank] : busy[rank] - delay[rank];
      its.ratios.push_back(own / std::max(others, 1e-9));
      if (its.ratios.back() < slow_ratio) continue;
      its.slow.push_back(its.ratios.back());
      if (its.example.empty())
        its.example = fmt::format("busy for {}, the others for {}, in {}", seconds_text(busy[rank]),
                                  seconds_text(others), record.name);
    }
  }
  const auto most = [](std::size_t of, std::size_t all) {
    return of >= least_cases && static_cast<double>(of) >= most_of_them * static_cast<double>(all);
  };
  // A sleeping rank loses less core time to other work. Next to a slow rank, all other ranks may
  // therefore seem to share a core.
  const auto another_is_slow = [&](int rank) {
    return std::ranges::any_of(seen, [rank](const auto& one) {
      const auto& [who, its] = one;
      return who.first != rank && !its.ratios.empty() && 2 * its.slow.size() >= its.ratios.size();
    });
  };
  // If the ranks of a machine differ among themselves, a rank must differ more to be slow.
  const auto stands_out = [&](const auto& who) {
    std::vector<double> others;
    for (const auto& [other, its] : seen)
      if (other.first != who.first && other.second == who.second && !its.ratios.empty())
        others.push_back(median(its.ratios));
    const std::array own{median(seen.at(who).ratios)};
    return others.size() < enough_ranks ||
           robust_z(own, others, (slow_ratio - 1) / outlying_z)[0] >= outlying_z;
  };
  std::map<std::string, std::map<int, std::string>> named;  // by kind and rank
  for (const auto& [who, its] : seen) {
    const auto [rank, of_disk] = who;
    if (most(its.slow.size(), its.ratios.size())) {
      const std::string text = fmt::format(
          "late, or slower than the others, in {} of {} cases, by a factor of {:.2f} "
          "(median); {}",
          its.slow.size(), its.ratios.size(), median(its.slow), its.example);
      if (stands_out(who))
        named[of_disk ? "slow disk" : "slow rank"].emplace(rank, text);
      else
        findings.add(Level::ok, "inconclusive", {rank}, text + "; but the others differ as much");
    } else if (most(its.shared.size(), its.able_to_share) && !another_is_slow(rank))
      named["shared core"].emplace(
          rank,
          fmt::format("its core ran something else for {:.0f} % of the time (median) in {} of {} "
                      "cases",
                      100 * median(its.shared), its.shared.size(), its.able_to_share));
  }
  for (const auto& [kind, evidence] : named) findings.add_ranks(kind, evidence);
  if (!delays.empty() && median(delays) > busy_fraction)
    findings.add(
        Level::ok, "inconclusive", {},
        fmt::format("slowness: the ranks' cores ran something else for {:.0f} % of the time "
                    "(median of cases)",
                    100 * median(delays)));
}

struct Spikes {
  std::map<int, int> of, cases;  // by rank
  int all = 0, samples = 0;
  std::size_t ranks = 0;

  void count(const std::vector<double>& here, int taken) {
    ranks = std::max(ranks, here.size());
    samples += taken;
    for (std::size_t rank = 0; rank < here.size(); ++rank) {
      of[static_cast<int>(rank)] += static_cast<int>(here[rank]);
      cases[static_cast<int>(rank)] += here[rank] > 0;
      all += static_cast<int>(here[rank]);
    }
  }
  // Returns the evidence of outliers, by rank.
  std::map<int, std::string> outstanding() const {
    std::map<int, std::string> found;
    for (const auto& [rank, count] : of) {
      int next = 0;
      for (const auto& [other, theirs] : of)
        if (other != rank) next = std::max(next, theirs);
      if (cases.at(rank) < 3 || count < 4 * next) continue;
      const auto some = static_cast<double>(ranks);
      if (at_least(count, all, 1 / some) * some < chance)
        found.emplace(rank, fmt::format("{} of {} samples took several times as long as its "
                                        "shortest, in {} cases; any other rank has at most {}",
                                        count, samples, cases.at(rank), next));
    }
    return found;
  }
};

// If other work ran on the cores, a rank may have waited for its own threads, whose delay is not
// counted.
void jitter(const RunFile& run, Findings& findings) {
  Spikes quiet, any;
  for (const Record& record : run.records) {
    const std::vector<double> here = by_rank(record, "spikes");
    const std::vector<double> delayed = by_rank(record, "delayed_fraction");
    if (here.size() < 2 || !record.traits || !record.traits->equal_work) continue;
    const int taken = static_cast<int>(counter(record, "samples"));
    any.count(here, taken);
    if (!delayed.empty() && std::ranges::max(delayed) <= busy_fraction) quiet.count(here, taken);
  }
  const std::map<int, std::string> sure = quiet.outstanding();
  for (const auto& [rank, text] : sure) findings.add(Level::warning, "jitter", {rank}, text);
  for (const auto& [rank, text] : any.outstanding())
    if (!sure.contains(rank))
      findings.add(Level::ok, "inconclusive", {rank},
                   "jitter: " + text + "; but other work ran on the cores");
}

// Finds units of which no case comes near the measured limit. One disturbed case is not enough.
void below_the_limit(const RunFile& run, Findings& findings) {
  struct Seen {
    double floor = 0;
    std::vector<double> quiet, disturbed;  // fractions of the limit
  };
  std::map<std::pair<std::string, std::string>, Seen> seen;  // by unit and class
  for (const Record& record : run.records) {
    const double fraction = counter(record, "limit_fraction");
    const auto floor = limit_floors.find(kind_of_case(record));
    if (record.verdict != Ruling::pass || !record.traits || !record.traits->limit_applies ||
        fraction <= 0 || counter(record, "limit_s") < long_limit_s || floor == limit_floors.end())
      continue;
    const std::vector<double> delayed = by_rank(record, "delayed_fraction");
    Seen& its = seen[{record.unit, floor->first}];
    its.floor = floor->second;
    const bool quiet = !delayed.empty() && std::ranges::max(delayed) <= busy_fraction;
    (quiet ? its.quiet : its.disturbed).push_back(fraction);
  }
  for (const auto& [what, its] : seen) {
    const auto& [unit, kind] = what;
    const bool settled = its.quiet.size() >= 3;
    const std::vector<double>& fractions = settled ? its.quiet : its.disturbed;
    if (fractions.size() < 3 || std::ranges::max(fractions) >= its.floor) continue;
    findings.add(settled ? Level::warning : Level::ok, settled ? "below the limit" : "inconclusive",
                 {},
                 fmt::format("{} ({}): at best {:.1f} % of the measured limit, in {} "
                             "cases; the floor is {:.0f} %{}",
                             unit, kind, 100 * std::ranges::max(fractions), fractions.size(),
                             100 * its.floor, settled ? "" : ", but other work ran on its cores"));
  }
}

// --expect: a machine that is slow in all its parts has no outlier.
void below_the_expectation(const RunFile& run, Findings& findings) {
  std::map<std::string, std::vector<const Record*>> slow;
  for (const Record& record : run.records)
    if (below_expectation(record)) slow[record.unit].push_back(&record);
  for (const auto& [unit, records] : slow) {
    const Record* const worst = *std::ranges::min_element(
        records, {}, [](const Record* one) { return counter(*one, "expected_fraction"); });
    findings.add(Level::warning, "below the expectation", {},
                 fmt::format("{}: {} {} below the floor; the slowest {}: {}", unit, records.size(),
                             records.size() == 1 ? "case is" : "cases are", worst->name,
                             expectation_text(*worst)));
  }
}

// Runs of older programs lack traits.
void without_traits(const RunFile& run, Findings& findings) {
  const auto unknown = std::ranges::count_if(run.records, [](const Record& record) {
    return record.verdict != Ruling::skipped && !record.failure && !record.traits;
  });
  if (unknown > 0)
    findings.add(Level::ok, "inconclusive", {},
                 fmt::format("{} of {} records do not state the traits of their cases, so they "
                             "were not searched for slow ranks, disks or units",
                             unknown, run.records.size()));
}

}  // namespace

void find_slow(const RunFile& run, Findings& findings) {
  slow_links(run, findings);
  slow_ranks(run, findings);
  jitter(run, findings);
  below_the_limit(run, findings);
  below_the_expectation(run, findings);
  without_traits(run, findings);
}

}  // namespace harness
