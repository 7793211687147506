#include "harness/diagnose/health.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "harness/diagnose/findings.h"
#include "harness/record/json_reading.h"
#include "harness/record/summary.h"

namespace harness {
namespace {

using Json = nlohmann::ordered_json;

// The finding of a failed case.
std::string finding_kind(machine::Failure::Kind kind) {
  using enum machine::Failure::Kind;
  switch (kind) {
    case wrong_result:
      return "wrong result";
    case wrong_input:
      return "wrong input";
    case out_of_memory:
      return "out of memory";
    case disk_full:
      return "full disk";
    case timeout:
    case deadlock:
    case peer_failed:
      return "timeout";
    case lost_rank:
      return "lost rank";
    default:
      return "exception";
  }
}

// The rank that has the failure and the peer that caused it. For a sum over more than two ranks the
// faulty rank is unknown.
std::vector<int> ranks_of(const machine::Failure& failure) {
  std::vector<int> ranks;
  for (const int rank : {failure.rank, failure.peer})
    if (rank >= 0 && failure.summed_ranks <= 2) ranks.push_back(rank);
  return ranks;
}

// Hosts by rank; empty if unknown.
std::vector<std::string> hosts_of(const Json& environment) {
  std::vector<std::string> hosts;
  const std::string everywhere =
      environment.value("same_on_all_ranks", Json::object()).value("host", "");
  for (const Json& rank : environment.value("ranks", Json::array()))
    hosts.push_back(rank.value("host", everywhere));
  return hosts;
}

class Examination {
 public:
  Examination(const RunFile& run, const Json& environment)
      : run_(run), environment_(environment), findings_(hosts_of(environment)) {}

  Health examine() {
    if (!run_.context.injected.empty())
      findings_.add(Level::ok, "injected", {},
                    fmt::format("on purpose: {}", fmt::join(run_.context.injected, " ")));
    aborted();
    failed_cases();
    different_software();
    find_slow(run_, findings_);
    Health health{Level::ok, findings_.all()};
    std::ranges::stable_sort(health.findings, std::greater{}, &Finding::level);
    if (!health.findings.empty()) health.level = health.findings.front().level;
    return health;
  }

 private:
  // Other failures also end a run, such as a full disk under the run directory. No rank is lost
  // then.
  void aborted() {
    if (run_.context.status != "aborted") return;
    const auto& failure = run_.context.failure;
    const int rank = failure ? machine::lost_rank(*failure) : -1;
    const bool all_there =
        failure && failure->rank < 0 && failure->kind != machine::Failure::Kind::deadlock;
    findings_.add(Level::critical, all_there ? finding_kind(failure->kind) : "lost rank",
                  rank < 0 ? std::vector<int>{} : std::vector{rank}, run_.context.status_reason);
  }

  // By kind and ranks: the first case, and how many there are.
  void failed_cases() {
    struct Failed {
      std::string first;
      int cases = 0;
    };
    std::map<std::pair<std::string, std::vector<int>>, Failed> failed;
    for (const Record& record : run_.records) {
      if (record.verdict != Ruling::fail || is_torn(record)) continue;
      const machine::Failure failure =
          record.failure.value_or(machine::Failure{.kind = machine::Failure::Kind::wrong_result});
      Failed& its = failed[{finding_kind(failure.kind), ranks_of(failure)}];
      if (its.cases++ == 0)
        its.first = fmt::format("{}: {}", record.name, fmt::join(failure_lines(record), "; "));
    }
    const std::string wrong_input = finding_kind(machine::Failure::Kind::wrong_input);
    for (const auto& [what, its] : failed)
      findings_.add(
          what.first == wrong_input ? Level::ok : Level::critical, what.first, what.second,
          its.cases == 1 ? its.first : fmt::format("{} cases; the first {}", its.cases, its.first));
  }

  // The case that ran when the run was aborted: aborted() has its failure.
  bool is_torn(const Record& record) const {
    return run_.context.status == "aborted" && &record == &run_.records.back() &&
           record.failure == run_.context.failure;
  }

  // The value of most ranks counts as right; with two ranks, neither value.
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
      if (usual.empty() && !of_software) continue;  // a variable that differs on every rank
      for (const auto& [value, of] : holders)
        if (value != usual)
          findings_.add(Level::warning, "different software", of,
                        fmt::format("{} is {}{}", path, value,
                                    usual.empty() ? ", and differs on the others"
                                                  : fmt::format(", on the other ranks {}", usual)));
    }
  }

  const RunFile& run_;
  const Json& environment_;
  Findings findings_;
};

}  // namespace

std::string_view name(Level level) {
  constexpr std::string_view names[] = {"OK", "WARN", "CRITICAL"};
  return names[static_cast<std::size_t>(level)];
}

Health health_of(const RunFile& run, const std::string& environment) {
  const Json json = Json::parse(environment, nullptr, false);
  return Examination(run, json.is_object() ? json : Json::object()).examine();
}

Health health_of(const std::string& directory) {
  return health_of(read_run(directory), file_text(directory + "/environment.json"));
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
  return dumped(all, 2) + "\n";
}

}  // namespace harness
