#include "harness/diagnose/health.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "harness/diagnose/findings.h"
#include "harness/json/json.h"
#include "harness/record/record_json.h"
#include "harness/record/summary.h"

namespace harness {
namespace {
// Returns the kind of finding for a failed case.
std::string finding_kind(machine::Failure::Kind kind) {
  using enum machine::Failure::Kind;
  if (kind == disk_full) return "full disk";
  if (kind == deadlock || kind == peer_failed) return "timeout";
  if (kind == unsupported) return "exception";
  std::string text(name(kind));  // "wrong_result"
  std::ranges::replace(text, '_', ' ');
  return text;
}

// Returns the rank that has the failure and the peer that caused it. For a sum over more than two
// ranks the faulty rank is unknown.
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

// Other failures also end a run, such as a full disk under the run directory. No rank is lost
// then.
void aborted(const RunFile& run, Findings& findings) {
  if (run.context.status != "aborted") return;
  const auto& failure = run.context.failure;
  const int rank = failure ? machine::lost_rank(*failure) : -1;
  const bool all_there =
      failure && failure->rank < 0 && failure->kind != machine::Failure::Kind::deadlock;
  findings.add(Level::critical, all_there ? finding_kind(failure->kind) : "lost rank",
               rank < 0 ? std::vector<int>{} : std::vector{rank}, run.context.status_reason);
}

// Returns whether the case ran when the run was aborted: aborted() has its failure.
bool is_torn(const RunFile& run, const Record& record) {
  return run.context.status == "aborted" && &record == &run.records.back() &&
         record.failure == run.context.failure;
}

// Groups failures by kind and ranks: the first case and the number of cases.
void failed_cases(const RunFile& run, Findings& findings) {
  struct Failed {
    std::string first;
    int cases = 0;
  };
  std::map<std::pair<std::string, std::vector<int>>, Failed> failed;
  for (const Record& record : run.records) {
    if (record.verdict != Ruling::fail || is_torn(run, record)) continue;
    const machine::Failure failure =
        record.failure.value_or(machine::Failure{.kind = machine::Failure::Kind::wrong_result});
    Failed& its = failed[{finding_kind(failure.kind), ranks_of(failure)}];
    if (its.cases++ == 0)
      its.first = fmt::format("{}: {}", record.name, fmt::join(failure_lines(record), "; "));
  }
  const std::string wrong_input = finding_kind(machine::Failure::Kind::wrong_input);
  for (const auto& [what, its] : failed)
    findings.add(
        what.first == wrong_input ? Level::ok : Level::critical, what.first, what.second,
        its.cases == 1 ? its.first : fmt::format("{} cases; the first {}", its.cases, its.first));
}

// "rank 3", "ranks 0-3, 7".
std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t first = 0, end = 0; first < ranks.size(); first = end) {
    for (end = first + 1; end < ranks.size() && ranks[end] == ranks[end - 1] + 1;) ++end;
    // Two neighbours are not a range: the rank with the failure and its peer, the ends of a link.
    if (end - first == 2) --end;
    text += fmt::format("{} {}", first == 0 ? "" : ",", ranks[first]);
    if (end - first > 1) text += fmt::format("-{}", ranks[end - 1]);
  }
  return text;
}

// The value of most ranks counts as right. Without a majority, all ranks are reported together.
void different_software(const Json& environment, Findings& findings) {
  const Json ranks = environment.value("ranks", Json::array());
  for (const Json& difference : environment.value("differences", Json::array())) {
    const std::string& path = difference.text();
    const bool of_software = path.starts_with("software.");
    if (!of_software && !path.starts_with("environment.") && path != "hardware.governor" &&
        !path.starts_with("hardware.gpu."))
      continue;
    std::string pointer = "/" + path;
    std::ranges::replace(pointer, '.', '/');
    std::map<std::string, std::vector<int>> holders;
    std::size_t held = 0;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const Json* const at = ranks[rank].find_path(pointer);
      // Only ranks whose cases used NCCL know its network.
      if (at == nullptr && path == "software.nccl.network") continue;
      holders[at != nullptr ? at->dump() : "nothing"].push_back(static_cast<int>(rank));
      ++held;
    }
    if (holders.size() < 2) continue;
    std::string usual;
    for (const auto& [value, of] : holders)
      if (2 * of.size() > held) usual = value;
    if (usual.empty() && !of_software) continue;  // a variable that differs on every rank
    std::vector<int> everyone;
    std::vector<std::string> values;
    for (const auto& [value, of] : holders) {
      everyone.insert(everyone.end(), of.begin(), of.end());
      values.push_back(fmt::format("{} on {}", value, ranks_text(of)));
      if (!usual.empty() && value != usual)
        findings.add(Level::warning, "different software", of,
                     fmt::format("{} is {}; the other ranks have {}", path, value, usual));
    }
    if (!usual.empty()) continue;
    std::ranges::sort(everyone);
    findings.add(Level::warning, "different software", everyone,
                 fmt::format("{} is {}", path, fmt::join(values, ", ")));
  }
}

}  // namespace

void Findings::add(Level level, std::string kind, std::vector<int> ranks, std::string evidence) {
  std::vector<std::string> hosts;
  for (const int rank : ranks)
    if (const std::string& name = host(rank);
        !name.empty() && std::ranges::find(hosts, name) == hosts.end())
      hosts.push_back(name);
  all_.push_back({level, std::move(kind), std::move(ranks), std::move(hosts), std::move(evidence)});
}

void Findings::add_ranks(const std::string& kind, const std::map<int, std::string>& evidence) {
  std::map<std::string, std::vector<int>> ranks_of;
  for (std::size_t rank = 0; rank < hosts_.size(); ++rank)
    ranks_of[hosts_[rank]].push_back(static_cast<int>(rank));
  std::set<std::string> whole;
  for (const auto& [name, ranks] : ranks_of)
    if (ranks_of.size() > 1 && ranks.size() > 1 &&
        std::ranges::all_of(ranks, [&](int rank) { return evidence.contains(rank); })) {
      whole.insert(name);
      add(Level::warning, kind, ranks,
          fmt::format("all ranks of the host; rank {}: {}", ranks.front(),
                      evidence.at(ranks.front())));
    }
  for (const auto& [rank, text] : evidence)
    if (!whole.contains(host(rank))) add(Level::warning, kind, {rank}, text);
}

const std::string& Findings::host(int rank) const {
  static const std::string unknown;
  const auto index = static_cast<std::size_t>(rank);
  return index < hosts_.size() ? hosts_[index] : unknown;
}

std::string_view name(Level level) {
  constexpr std::string_view names[] = {"OK", "WARN", "CRITICAL"};
  return names[static_cast<std::size_t>(level)];
}

Health health_of(const RunFile& run, const std::string& environment) {
  Json json = Json::parse_or_null(environment);
  if (!json.is_object()) json = Json::object();
  Findings findings(hosts_of(json));
  if (!run.context.injected.empty())
    findings.add(Level::ok, "injected", {},
                 fmt::format("{}", fmt::join(run.context.injected, " ")));
  aborted(run, findings);
  failed_cases(run, findings);
  different_software(json, findings);
  find_failing_gpus(json, findings);
  find_slow(run, findings);
  Health health{Level::ok, findings.all()};
  std::ranges::stable_sort(health.findings, std::greater{}, &Finding::level);
  if (!health.findings.empty()) health.level = health.findings.front().level;
  return health;
}

Health health_of(const std::string& directory) {
  return health_of(read_run(directory), file_text(directory + "/environment.json"));
}

std::string health_text(const Health& health) {
  std::string text = fmt::format("health: {}\n", name(health.level));
  for (const Finding& finding : health.findings) {
    std::string who;
    if (!finding.ranks.empty()) who = ": " + ranks_text(finding.ranks);
    if (!finding.hosts.empty()) who += fmt::format(" ({})", fmt::join(finding.hosts, ", "));
    // The evidence of a lost rank begins with the rank, its process and its host.
    if (finding.ranks.size() == 1 && finding.evidence.starts_with(ranks_text(finding.ranks) + " "))
      who.clear();
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
  return all.dump(2) + "\n";
}

}  // namespace harness
