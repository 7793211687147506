#include "harness/report/health.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "harness/compare/compare.h"
#include "harness/report/summary.h"
#include "harness/statistics.h"

namespace harness {
namespace {

using Json = nlohmann::ordered_json;

// What matters, and how often it must be seen. A rank is held against the others in cases where all
// do the same work.
constexpr double slow_ratio = 1.25, slow_s = 1e-3;  // busy for so much longer; at least this long
constexpr double shared_fraction = 0.25;            // of its time its core ran something else
constexpr double turn_s = 3e-3;        // what runs on a core has it for so long before others do
constexpr double busy_fraction = 0.2;  // from here on a rank's speed says little
constexpr std::size_t least_cases = 6;
constexpr double most_of_them = 0.8;
constexpr double chance = 1e-5;
// Where ranks wait for their cores: the fastest passes of pairs that are alike differ by seven
// times.
constexpr double crowded_passes = 5, crowded_factor = 8;
constexpr double pair_factor = 1.5, pair_factor_once = 3;  // slower than typical pairs

const std::set<std::string> equal_work{"gemm",           "memory_bandwidth", "optimizer_step",
                                       "offload_step",   "all_reduce",       "all_gather",
                                       "reduce_scatter", "all_to_all",       "nvme_bandwidth"};
const std::set<std::string> equal_algorithms{
    "ring",  "bidirectional_ring",        "direct", "pairwise", "recursive_doubling",
    "bruck", "recursive_halving_doubling"};

// Units whose limit is what they may come near to: others compress, wait in turn, do what it leaves
// out.
const std::set<std::string> limited{"gemm",       "column_parallel_linear", "row_parallel_linear",
                                    "mlp",        "memory_bandwidth",       "all_reduce",
                                    "all_gather", "reduce_scatter",         "all_to_all",
                                    "broadcast"};
// What at least one of such a unit's cases of a class (compare/floors.cpp) should reach of its
// limit, where that is long enough to mean something: a third of what is usual, or less.
const std::map<std::string, double, std::less<>> limit_floors{
    {"computation", 0.15}, {"bandwidth", 0.1}, {"message", 0.03}};
constexpr double long_limit_s = 1e-4;

std::string axis(const Record& record, std::string_view name) {
  for (const auto& [axis, value] : record.axes)
    if (axis == name) return value;
  return {};
}

bool is_of(const std::set<std::string>& units, const Record& record) {
  const std::string algorithm = axis(record, "algorithm");
  return units.contains(record.unit) && (algorithm.empty() || equal_algorithms.contains(algorithm));
}
bool all_do_the_same(const Record& record) { return is_of(equal_work, record); }

// By rank; empty where the record has none.
std::vector<double> by_rank(const Record& record, std::string_view name) {
  std::vector<double> values;
  while (true) {
    const auto found = record.counters.find(fmt::format("{}/rank:{}", name, values.size()));
    if (found == record.counters.end()) return values;
    values.push_back(found->second);
  }
}

double median_of_others(const std::vector<double>& values, std::size_t index) {
  std::vector<double> others = values;
  others.erase(others.begin() + static_cast<std::ptrdiff_t>(index));
  return median(others);
}

// P(X >= count) for X ~ Binomial(n, p).
double at_least(int count, int n, double p) {
  double sum = 0;
  for (int k = count; k <= n; ++k)
    sum += std::exp(std::lgamma(n + 1.0) - std::lgamma(k + 1.0) - std::lgamma(n - k + 1.0) +
                    k * std::log(p) + (n - k) * std::log1p(-p));
  return sum;
}

// The first "rank N" of a text.
int rank_in(const std::string& text, const std::string& before = "") {
  std::smatch found;
  return std::regex_search(text, found, std::regex(before + "rank (\\d+)")) ? std::stoi(found[1])
                                                                            : -1;
}

class Examination {
 public:
  Examination(const RunFile& run, const std::string& environment) : run_(run) {
    environment_ = Json::parse(environment, nullptr, false);
    if (environment_.is_discarded() || !environment_.is_object()) environment_ = Json::object();
  }

  Health examine() {
    if (run_.machine.contains("injected"))
      add(Level::ok, "injected", {}, "on purpose: " + run_.machine.at("injected"));
    lost_rank();
    wrong_results();
    different_software();
    slow_links();
    slow_ranks();
    jitter();
    below_the_limit();
    std::ranges::stable_sort(health_.findings, std::greater{}, &Finding::level);
    for (const Finding& finding : health_.findings)
      health_.level = std::max(health_.level, finding.level);
    return health_;
  }

 private:
  std::string host(int rank) const {
    const auto index = static_cast<std::size_t>(rank);
    const Json ranks = environment_.value("ranks", Json::array());
    if (index < ranks.size() && ranks[index].contains("host")) return ranks[index]["host"];
    return environment_.value("same_on_all_ranks", Json::object()).value("host", "");
  }

  void add(Level level, std::string kind, std::vector<int> ranks, std::string evidence) {
    std::vector<std::string> hosts;
    for (const int rank : ranks) {
      const std::string name = host(rank);
      if (!name.empty() && std::ranges::find(hosts, name) == hosts.end()) hosts.push_back(name);
    }
    health_.findings.push_back(
        {level, std::move(kind), std::move(ranks), std::move(hosts), std::move(evidence)});
  }

  void lost_rank() {
    if (run_.context.status != "aborted") return;
    // Of the watchdog's own sentence alone: others begin with a rank that waited.
    const std::string& reason = run_.context.status_reason;
    const int rank = names_lost_rank(reason) ? rank_in(reason) : -1;
    add(Level::critical, "lost rank", rank < 0 ? std::vector<int>{} : std::vector{rank},
        run_.context.status_reason);
  }

  // By the rank, and the peer that it had it from: the first of them, and how many there are. A sum
  // of more than two ranks' parts does not tell whose was wrong.
  void wrong_results() {
    struct Wrong {
      std::vector<int> ranks;
      std::string kind, first;
      int cases = 0;
    };
    std::map<std::pair<int, int>, Wrong> wrong;
    for (const Record& record : run_.records) {
      if (record.verdict != Ruling::fail || record.reason == run_.context.status_reason) continue;
      const std::string text = fmt::format("{}", fmt::join(failure_lines(record), "; "));
      int rank = rank_in(text), peer = rank_in(text, "(?:received from|what came from) ");
      if (text.find("summed with") != std::string::npos &&
          std::atoi(axis(record, "ranks").c_str()) > 2)
        rank = peer = -1;
      Wrong& its = wrong[{rank, peer}];
      if (its.cases++ > 0) continue;
      its.kind = text.find("No space left") != std::string::npos      ? "full disk"
                 : text.find("out of memory on") != std::string::npos ? "out of memory"
                                                                      : "wrong result";
      for (const int named : {rank, peer})
        if (named >= 0) its.ranks.push_back(named);
      its.first = fmt::format("{}: {}", record.name, text);
    }
    for (const auto& [who, its] : wrong)
      add(Level::critical, its.kind, its.ranks,
          its.cases == 1 ? its.first : fmt::format("{} cases; the first {}", its.cases, its.first));
  }

  // A value that most ranks share is taken for the right one; of two ranks neither is.
  void different_software() {
    const Json ranks = environment_.value("ranks", Json::array());
    for (const Json& difference : environment_.value("differences", Json::array())) {
      const std::string path = difference;
      const bool of_software = path.starts_with("software.");
      if (!of_software && !path.starts_with("environment.") && path != "hardware.governor")
        continue;
      std::string pointer = "/" + path;
      std::ranges::replace(pointer, '.', '/');
      std::map<std::string, std::vector<int>> holders;
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        const Json::json_pointer at(pointer);
        holders[ranks[rank].contains(at) ? ranks[rank][at].dump() : "nothing"].push_back(
            static_cast<int>(rank));
      }
      std::string usual;
      for (const auto& [value, of] : holders)
        if (2 * of.size() > ranks.size()) usual = value;
      if (usual.empty() && !of_software) continue;  // a variable that every rank has its own of
      for (const auto& [value, of] : holders)
        if (value != usual)
          add(Level::warning, "different software", of,
              fmt::format("{} is {}{}", path, value,
                          usual.empty() ? ", and differs on the others"
                                        : fmt::format(", on the other ranks {}", usual)));
    }
  }

  struct Slow {
    int seen = 0;
    double factor = 0;  // the largest
    std::string text;
  };
  static bool certain(const Slow& slow, int matrices) {
    return 2 * slow.seen > matrices &&
           (slow.factor >= pair_factor_once || (slow.factor >= pair_factor && slow.seen > 1));
  }

  // The ranks of each host, or where there is one host only, each rank.
  static std::vector<std::vector<int>> ends_of(const LinkMatrix& matrix) {
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

  // The best that an end reaches with any other, in the slower direction: low where its own way to
  // the network is slow, however many pairs that spoils.
  static double best_of(const LinkMatrix& matrix, const std::vector<int>& end) {
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

  void slow_links() {
    std::map<std::vector<int>, Slow> ends;
    std::map<std::pair<int, int>, Slow> pairs;
    int matrices = 0;
    for (const Record& record : run_.records) {
      const LinkMatrix& matrix = record.link_matrix;
      if (matrix.ranks() < 3) continue;
      // There each pair's fastest pass stands in, which takes several.
      const double passes = counter(record, "samples", crowded_passes);
      if (!matrix.crowded_hosts.empty() && passes < crowded_passes) continue;
      ++matrices;
      std::vector<double> bests;
      const std::vector<std::vector<int>> all = ends_of(matrix);
      for (const std::vector<int>& end : all) bests.push_back(best_of(matrix, end));
      for (std::size_t i = 0; all.size() > 2 && i < all.size(); ++i) {
        const double typical = median_of_others(bests, i);
        const double factor = typical / std::max(bests[i], 1e-12);
        if (!matrix.crowded_hosts.empty() && factor < crowded_factor) continue;
        see(ends[all[i]], factor, [&] {
          return fmt::format(
              "it reaches {:.3g} GB/s with the best of the others, they {:.3g} (median); {}",
              bests[i], typical, record.name);
        });
      }
      std::map<std::pair<int, int>, LinkMatrix::SlowPair>
          here;  // the worst of each, which is first
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
      add(Level::warning, "slow link", end, slow.text);
    }
    for (const auto& [link, slow] : pairs) {
      if (named.contains(link.first) || named.contains(link.second)) continue;
      const bool sure = certain(slow, matrices);
      add(sure ? Level::warning : Level::ok, sure ? "slow link" : "inconclusive",
          sure ? std::vector{link.first, link.second} : std::vector<int>{},
          fmt::format("in {} of {} matrices; {}", slow.seen, matrices, slow.text));
    }
  }
  static void see(Slow& slow, double factor, const auto& text) {
    if (factor < pair_factor) return;
    ++slow.seen;
    if (factor <= slow.factor) return;
    slow.factor = factor;
    slow.text = text();
  }

  // A rank that is late, or computes slowly: busy while the others wait for it, or busy for longer.
  void slow_ranks() {
    struct Seen {
      std::vector<double> ratios, shared;  // of cases where it was slow; where its core was shared
      std::size_t able = 0, able_to_share = 0;  // cases that can show it
      std::string example;
    };
    std::map<std::pair<int, bool>, Seen> seen;  // by rank, and whether it is of its disk
    std::vector<double> delays;
    for (const Record& record : run_.records) {
      const std::vector<double> busy = by_rank(record, "busy_s");
      const std::vector<double> delayed = by_rank(record, "delayed_fraction");
      const std::vector<double> delay = by_rank(record, "delayed_s");
      if (busy.size() < 2 || busy.size() != delay.size() || !all_do_the_same(record)) continue;
      for (std::size_t rank = 0; rank < busy.size(); ++rank) {
        Seen& its = seen[{static_cast<int>(rank), record.unit == "nvme_bandwidth"}];
        delays.push_back(delayed[rank]);
        // What is over within one turn meets nobody on its core.
        const bool long_enough =
            busy[rank] * counter(record, "samples") * counter(record, "batch", 1) >= turn_s;
        its.able_to_share += long_enough;
        if (long_enough && delayed[rank] >= shared_fraction &&
            delayed[rank] >= 2.5 * std::max(0.05, median_of_others(delayed, rank)))
          its.shared.push_back(delayed[rank]);
        const double others = median_of_others(busy, rank);
        if (std::max(busy[rank], others) < slow_s) continue;
        ++its.able;
        // Beyond what other work on its core explains.
        if (busy[rank] - delay[rank] < slow_ratio * others) continue;
        its.ratios.push_back(busy[rank] / std::max(others, 1e-9));
        if (its.example.empty())
          its.example = fmt::format("busy for {}, the others for {}, in {}",
                                    seconds_text(busy[rank]), seconds_text(others), record.name);
      }
    }
    const auto most = [](std::size_t of, std::size_t all) {
      return of >= least_cases &&
             static_cast<double>(of) >= most_of_them * static_cast<double>(all);
    };
    // Who sleeps meets less of what runs beside it: beside a slow rank all others seem crowded out.
    const auto another_is_slow = [&](int rank) {
      return std::ranges::any_of(seen, [rank](const auto& one) {
        return one.first.first != rank && one.second.able > 0 &&
               2 * one.second.ratios.size() >= one.second.able;
      });
    };
    for (const auto& [who, its] : seen) {
      const auto [rank, of_disk] = who;
      if (most(its.ratios.size(), its.able))
        add(Level::warning, of_disk ? "slow disk" : "slow rank", {rank},
            fmt::format("late, or slower than the others, in {} of {} cases, by a factor of {:.2f} "
                        "(median); {}",
                        its.ratios.size(), its.able, median(its.ratios), its.example));
      else if (most(its.shared.size(), its.able_to_share) && !another_is_slow(rank))
        add(Level::warning, "shared core", {rank},
            fmt::format("its core ran something else for {:.0f} % of the time (median) in {} of {} "
                        "cases",
                        100 * median(its.shared), its.shared.size(), its.able_to_share));
    }
    if (!delays.empty() && median(delays) > busy_fraction)
      add(Level::ok, "inconclusive", {},
          fmt::format("the ranks' cores ran something else for {:.0f} % of the time (median of "
                      "cases): what is slow then says little of the machine",
                      100 * median(delays)));
  }

  void jitter() {
    std::map<int, int> spikes, cases;
    int all = 0, samples = 0;
    std::size_t ranks = 0;
    for (const Record& record : run_.records) {
      const std::vector<double> here = by_rank(record, "spikes");
      if (here.size() < 2 || !all_do_the_same(record)) continue;
      ranks = std::max(ranks, here.size());
      samples += static_cast<int>(counter(record, "samples"));
      for (std::size_t rank = 0; rank < here.size(); ++rank) {
        spikes[static_cast<int>(rank)] += static_cast<int>(here[rank]);
        cases[static_cast<int>(rank)] += here[rank] > 0;
        all += static_cast<int>(here[rank]);
      }
    }
    for (const auto& [rank, count] : spikes) {
      int next = 0;
      for (const auto& [other, theirs] : spikes)
        if (other != rank) next = std::max(next, theirs);
      if (cases[rank] < 3 || count < 4 * next) continue;
      const double p = at_least(count, all, 1 / static_cast<double>(ranks));
      if (p * static_cast<double>(ranks) < chance)
        add(Level::warning, "jitter", {rank},
            fmt::format(
                "{} of {} samples took several times what its shortest did, in {} cases; of "
                "any other rank at most {}",
                count, samples, cases[rank], next));
    }
  }

  // A unit as a whole, so that one disturbed case says nothing: none of its cases comes near what
  // the machine was measured to do.
  void below_the_limit() {
    struct Seen {
      double floor = 0;
      std::vector<double> quiet, disturbed;  // fractions of the limit
    };
    std::map<std::pair<std::string, std::string>, Seen> seen;  // by unit and class
    for (const Record& record : run_.records) {
      const double fraction = counter(record, "limit_fraction");
      const auto floor = limit_floors.find(floor_of(record).kind);
      if (record.verdict != Ruling::pass || !is_of(limited, record) || fraction <= 0 ||
          counter(record, "limit_s") < long_limit_s || floor == limit_floors.end())
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
      add(settled ? Level::warning : Level::ok, settled ? "below the limit" : "inconclusive", {},
          fmt::format("{} ({}): at best {:.1f} % of what this machine was measured to do, in {} "
                      "cases; the floor is {:.0f} %{}",
                      unit, kind, 100 * std::ranges::max(fractions), fractions.size(),
                      100 * its.floor, settled ? "" : ", but other work ran on its cores"));
    }
  }

  const RunFile& run_;
  Json environment_;
  Health health_;
};

}  // namespace

std::string_view name(Level level) {
  switch (level) {
    case Level::ok:
      return "OK";
    case Level::warning:
      return "WARN";
    case Level::critical:
      return "CRITICAL";
  }
  return "?";
}

Health health_of(const RunFile& run, const std::string& environment) {
  return Examination(run, environment).examine();
}

Health health_of(const std::string& directory) {
  std::ostringstream environment;
  if (std::ifstream file(directory + "/environment.json"); file) environment << file.rdbuf();
  return health_of(read_run(directory), environment.str());
}

std::string health_text(const Health& health) {
  std::string text = fmt::format("health: {}\n", name(health.level));
  for (const Finding& finding : health.findings) {
    std::string who;
    for (const int rank : finding.ranks)
      who += fmt::format("{}rank {}", who.empty() ? ": " : ", ", rank);
    if (!finding.hosts.empty()) who += fmt::format(" ({})", fmt::join(finding.hosts, ", "));
    text += fmt::format("  {}{}{}: {}\n",
                        finding.level == Level::ok ? "" : fmt::format("{} ", name(finding.level)),
                        finding.kind, who, plain(finding.evidence));
  }
  return text;
}

std::string health_json(const Health& health) {
  Json drain = Json::array(), notes = Json::array();
  for (const Finding& finding : health.findings) {
    const Json entry{{"kind", finding.kind},
                     {"level", name(finding.level)},
                     {"ranks", finding.ranks},
                     {"hosts", finding.hosts},
                     {"evidence", finding.evidence}};
    (finding.level == Level::ok ? notes : drain).push_back(entry);
  }
  const Json all{{"schema", "shardmark-drain/1"},
                 {"level", name(health.level)},
                 {"code", static_cast<int>(health.level)},
                 {"drain", drain},
                 {"notes", notes}};
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace harness
